#!/usr/bin/env bash
# Checks and measures weft on a machine with an NVIDIA GPU, in under 9 minutes. What would be missed most comes first: a
# smoke test, then OPT-30B in 16 GiB with the full cache and with 20 % of it, the machine's ceilings, the standard
# OPT-6.7B workloads next to their bounds, agreement with the CPU, all tests, more of OPT-30B, compute-sanitizer. Runs from the source tree after
# a build and from an unpacked package. After every step it writes two files anew, results.json and table.md in
# docs/results/GPU-DATE/, so that a run that is cut short or killed leaves what it measured.
#
#   scripts/gpu_check.sh [--minutes 9] [--out DIR] [--only PART,...] [--resume] [--sweeps 32] [--full WORKLOAD]
#                        [--build DIR] [--machine FILE] [--dry-run]
#
#   --minutes N       what does not fit is skipped, and table.md says so
#   --only PART,...   of machine, smoke, headline, ceilings, workloads, agreement, tests, more, sanitizer
#   --resume          goes on in --out DIR: what it holds already stays, and is not repeated
#   --sweeps N        most decode sweeps at the beginning, the middle and the end of a projected workload
#   --full WORKLOAD   runs this one to its end ("opt-30b 512+512 h2o:0.1:0.1"), and no other
#   --build DIR       where weft was built, if not in build/release
#   --machine FILE    says how long workloads take (configs/machines); by default the file of this GPU, if there is one
#   --dry-run         the same steps on the CPU with a tiny model, in seconds: shows that the script works. With
#                     --machine nothing runs: prints how long each step would take on that machine, and their sum
#
# Workloads run with at most 16 GiB of device memory and 96 GiB of host memory. Short ones run to their end; of longer
# ones prefill does, unless it alone would take a minute, and decode is projected. Those of the headline run before the
# ceilings are known, so their rows show no bound; --only workloads --full WORKLOAD afterwards does. Exit code 0: nothing
# failed; 1: something did; 2: wrong flags, or no GPU.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=(machine smoke headline ceilings workloads agreement tests more sanitizer)

refuse() {
  echo "gpu_check: error: $1" >&2
  exit 2
}

minutes=9 out="" only="" resume="" sweeps=32 full="" build=$root/build/release machine="" dry=""
while [ $# -gt 0 ]; do
  case $1 in
    --minutes | --out | --only | --sweeps | --full | --build | --machine)
      [ $# -gt 1 ] || refuse "$1 wants a value"
      declare "${1#--}=$2"
      shift ;;
    --resume) resume=1 ;;
    --dry-run) dry=1 ;;
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown flag '$1'; see --help" ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]+$ ]] || refuse "--minutes wants a whole number, got '$minutes'"
[[ $sweeps =~ ^[1-9][0-9]*$ ]] || refuse "--sweeps wants a whole number from 1 on, got '$sweeps'"
[ -z "$machine" ] || [ -r "$machine" ] || refuse "--machine: $machine cannot be read"
[ -z "$resume" ] || [ -n "$out" ] || refuse "--resume wants --out, the folder to go on in"
for part in ${only//,/ }; do
  [[ " ${parts[*]} " == *" $part "* ]] || refuse "--only: no part '$part'; there are ${parts[*]}"
done

if [ -x "$root/bin/weft" ]; then weft=$root/bin/weft tests=$root/bin/tests
else weft=$build/weft tests=$build/tests
fi
[ -x "$weft" ] || refuse "no $weft; build first (cmake --preset release && cmake --build --preset release), or --build"
forecast=""  # only print how long the steps would take
if [ -n "$dry" ]; then
  gpu="dry run"
  if [ -n "$machine" ]; then forecast=1; fi
else
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null)
  [ -n "$gpu" ] || refuse "no NVIDIA GPU: nvidia-smi finds none; --dry-run shows the steps without one"
  for name in t4 a100-80gb h100 h200; do
    if [ -z "$machine" ] && [[ ${gpu,,} == *${name%-*}* ]]; then machine=$root/configs/machines/$name.json; fi
  done
fi
field() {  # NAME: a number of the machine file's memory
  sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" "$machine" | head -1
}

# model|prompt|tokens|retention|policy; the shorter and the more telling first
headline=() workloads=() more=()
if [ -n "$dry" ] && [ -z "$forecast" ]; then
  backend=cpu device_mib=24 host_mib=24
  smoke=kernels smoke_cases="memory of every*"
  agreement=runtime agreement_cases="every tiny Qwen*"
  programs=(offload)
  for retention in full h2o:0.1:0.1; do
    headline+=("demo|16|40|$retention|opt-30b-16gib")
    workloads+=("demo|16|8|$retention|opt-6.7b-16gib")
  done
  [ "$sweeps" -le 12 ] || sweeps=12
else
  backend=cuda
  if [ -n "$forecast" ]; then
    device_mib=$(($(field device) >> 20)) host_mib=$(($(field host) >> 20))
    if [ "$device_mib" -gt 16384 ]; then device_mib=16384; fi
    if [ "$host_mib" -gt 98304 ]; then host_mib=98304; fi
  else
    device_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits -i 0)
    device_mib=$((device_mib * 95 / 100 < 16384 ? device_mib * 95 / 100 : 16384))
    host_mib=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    group=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
    if [ "$group" != max ] && [ $((group >> 20)) -lt "$host_mib" ]; then host_mib=$((group >> 20)); fi
    host_mib=$((host_mib * 80 / 100 < 98304 ? host_mib * 80 / 100 : 98304))
  fi
  # A kernel test, and copies across the places where a driver may end a registration of host memory.
  smoke=kernels_cuda smoke_cases="memory of every*,large host memory*,decode attention matches*"
  agreement=runtime_cuda agreement_cases="*"
  programs=(kernels_cuda kernels offload policy runtime)
  for retention in full h2o:0.1:0.1; do headline+=("opt-30b|512|512|$retention|opt-30b-16gib"); done
  for shape in "512|32" "512|512" "512|1024"; do
    for retention in full h2o:0.1:0.1; do workloads+=("opt-6.7b|$shape|$retention|opt-6.7b-16gib"); done
  done
  for retention in h2o:0.1:0.1 full; do
    more+=("opt-30b|512|32|$retention|opt-30b-16gib-short" "opt-30b|512|1024|$retention|opt-30b-16gib")
  done
fi
name_of() {  # MODEL|PROMPT|TOKENS|RETENTION|POLICY
  local model prompt tokens retention policy
  IFS='|' read -r model prompt tokens retention policy <<<"$1"
  echo "$model $prompt+$tokens $retention"
}
file_of() { echo "${1//[ +:]/-}"; }  # WORKLOAD
if [ -n "$full" ]; then
  known=""
  for workload in "${headline[@]}" "${workloads[@]}" "${more[@]}"; do known+="; $(name_of "$workload")"; done
  [[ "$known;" == *"; $full;"* ]] || refuse "--full: no workload '$full'; there are${known#;}"
fi

date=$(date +%Y-%m-%d)
slug=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
if [ -n "$forecast" ] && [ -z "$out" ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
out=${out:-$root/docs/results/$slug-$date}
if [ -z "$resume" ]; then rm -rf "$out/parts"; fi
mkdir -p "$out/parts" "$out/logs" || refuse "$out cannot be written to"
out=$(cd "$out" && pwd)
export WEFT_SOURCE_DIR=$root
failed="" notes=()
deadline=$((SECONDS + minutes * 60))
left() { echo $((deadline - SECONDS)); }
smaller() { echo $(($1 < $2 ? $1 : $2)); }

quoted() {  # TEXT as a JSON string
  printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}
store() {  # NAME: standard input becomes the part of that name, whole or not at all
  cat >"$out/parts/.next" && mv "$out/parts/.next" "$out/parts/$1.json"
}
values() {  # FILE: one "path<TAB>value" a line, of JSON as weft prints it
  awk '{ sub(/^ +/, ""); sub(/,$/, ""); key = "" }
    /^[}\]]$/ { depth--; next }
    match($0, /^"([^"\\]|\\.)*": /) { key = substr($0, 2, RLENGTH - 4); $0 = substr($0, RLENGTH + 1) }
    key == "" && depth > 0 { key = count[depth]++ }
    /^[{[]$/ { name[++depth] = key; count[depth] = 0; next }
    { path = ""; for (d = 2; d <= depth; d++) path = path name[d] "/"; print path key "\t" $0 }' "$1" 2>/dev/null
}
value() {  # FILE PATH [SCALE FORMAT]
  values "$1" | awk -F'\t' -v path="$2" -v scale="${3:-}" -v format="${4:-%s}" '
    $1 == path { gsub(/^"|"$/, "", $2); if (scale != "") $2 = sprintf(format, $2 / scale); print $2; exit }'
}

write_results() {
  table >"$out/.table" && mv "$out/.table" "$out/table.md"
  {
    printf '{\n"version": 1,\n"date": "%s",\n"gpu": %s,\n"dry_run": %s' "$date" "$(quoted "$gpu")" \
      "$([ -n "$dry" ] && echo true || echo false)"
    for part in machine smoke ceilings agreement tests sanitizer; do
      printf ',\n"%s": ' "$part"
      if [ -e "$out/parts/$part.json" ]; then cat "$out/parts/$part.json"; else echo null; fi
    done
    printf ',\n"workloads": {'
    comma=""
    for workload in "${headline[@]}" "${workloads[@]}" "${more[@]}"; do
      name=$(name_of "$workload")
      printf '%s\n%s: ' "$comma" "$(quoted "$name")"
      file=$out/parts/$(file_of "$name").json
      if [ -e "$file" ]; then cat "$file"; else echo null; fi
      comma=,
    done
    printf '},\n"notes": ['
    comma=""
    for note in "${notes[@]}"; do
      printf '%s\n%s' "$comma" "$(quoted "$note")"
      comma=,
    done
    printf ']\n}\n'
  } >"$out/.results" && mv "$out/.results" "$out/results.json"
}

table() {
  local file=$out/parts/machine.json
  printf '# weft on %s, %s\n\n' "$gpu" "$date"
  values "$file" | awk -F'\t' '{ gsub(/"/, "", $2); print "- " $1 ": " $2 }'
  printf '\n| tests | passed | failed | seconds |\n|---|---|---|---|\n'
  for part in smoke agreement tests sanitizer; do
    for program in $(values "$out/parts/$part.json" | sed -n 's|/passed\t.*||p'); do
      file=$out/parts/$part.json
      printf '| %s | %s | %s | %s |\n' "$program" "$(value "$file" "$program/passed")" \
        "$(value "$file" "$program/failed")" "$(value "$file" "$program/seconds")"
    done
  done
  printf '\n| ceiling | median | of what bounds it |\n|---|---|---|\n'
  values "$out/parts/ceilings.json" | awk -F'\t' '
    function flush() { if (last != "") printf "| %s | %s | %s |\n", last, number, ratio; last = ratio = "" }
    $1 ~ /library/ { next }
    $1 ~ /bytes_per_second$/ { flush(); last = $1; number = sprintf("%.4g GB/s", $2 / 1e9) }
    $1 ~ /flop_per_second$/ { flush(); last = $1; number = sprintf("%.4g TFLOP/s", $2 / 1e12) }
    $1 ~ /\/seconds$/ { flush(); last = $1; number = sprintf("%.4g ms", $2 * 1e3) }
    match($1, /\/of_[a-z_]*$/) { ratio = sprintf("%.2f %s", $2, substr($1, RSTART + 1)); gsub(/_/, " ", ratio) }
    END { flush() }' | sed -E 's/[_/](bytes|flop)_per_second|[/]seconds//'
  printf '\n%s\n|---|---|---|---|---|---|---|---|---|---|\n' \
    '| workload | block | tokens/s | prefill | decode | bound | achieved | decode alone | longest lane | measured |'
  for workload in "${headline[@]}" "${workloads[@]}" "${more[@]}"; do table_row "$(name_of "$workload")"; done
  printf '\n'
  for note in "${notes[@]}"; do printf -- '- %s\n' "$note"; done
}
table_row() {  # WORKLOAD
  local file
  file=$out/parts/$(file_of "$1").json
  [ -e "$file" ] || return
  local error
  error=$(value "$file" error)
  if [ -n "$error" ]; then printf '| %s | | | | | | | | | %s |\n' "$1" "$error"; return; fi
  printf '| %s | %s x %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" \
    "$(value "$file" policy/gpu_batch_size)" "$(value "$file" policy/num_gpu_batches)" \
    "$(value "$file" tokens_per_second/total/median 1 %.1f)" \
    "$(value "$file" tokens_per_second/prefill/median 1 %.0f)" \
    "$(value "$file" tokens_per_second/decode/median 1 %.1f)" "$(value "$file" bound/total/tokens_per_second 1 %.1f)" \
    "$(value "$file" bound/total/achieved 1 %.2f)" "$(value "$file" bound/decode/achieved 1 %.2f)" \
    "$(value "$file" bound/decode/longest_lane)" \
    "$([ "$(value "$file" measured)" = true ] && echo "to its end" || echo projected)"
}

note() {
  notes+=("$1")
  echo "gpu_check: $1"
}
# NAME SECONDS: whether to start it; a line says why not
enough() {
  if [ "$(left)" -ge "$2" ]; then return 0; fi
  note "$1: skipped, for it wants about $2 s and $(left) s are left"
  return 1
}
# SECONDS LOG COMMAND...: sets rc and seconds
limited() {
  local limit=$1 log=$out/logs/$2.log begin=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" >"$log" 2>"$log.err" </dev/null
  rc=$? seconds=$((SECONDS - begin))
  cat "$log.err" >>"$log" && rm "$log.err"
}
counts() {  # LOG: sets passed and failed, from Catch2's closing line
  read -r passed failures < <(awk '/^All tests passed/ { sub(/.* in /, ""); print $1, 0; found = 1 }
    /^test cases:/ { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed") p = $i; if ($(i + 1) == "failed") f = $i }
      print p + 0, f + 0; found = 1 }
    END { if (!found) print 0, 1 }' "$1" | tail -1)
}

run_machine() {
  local size free kind driver memory generation most width most_width
  read -r size free kind < <(df -h --output=size,avail,fstype "$out" | tail -1)
  {
    printf '{\n'
    if [ -z "$dry" ]; then
      local link=pcie.link
      IFS=, read -r driver memory generation most width most_width < <(nvidia-smi -i 0 --format=csv,noheader \
        "--query-gpu=driver_version,memory.total,$link.gen.current,$link.gen.max,$link.width.current,$link.width.max" |
        sed 's/, /,/g')
      printf '  "gpu": %s,\n' "$(quoted "$gpu, $memory, driver $driver")"
      printf '  "link": %s,\n' "$(quoted "PCIe generation $generation of $most, width $width of $most_width")"
    fi
    printf '  "processor": %s,\n' "$(quoted "$(lscpu | sed -n 's/^Model name: *//p' | head -1), $(nproc) cores")"
    printf '  "memory": %s,\n' "$(quoted "$(awk '/MemTotal/ { printf "%.1f GiB", $2 / 1048576 }
      /MemAvailable/ { printf ", of which %.1f GiB can be had", $2 / 1048576 }' /proc/meminfo)")"
    printf '  "disk": %s,\n' "$(quoted "$kind, $size, of which $free are free")"
    printf '  "system": %s,\n' "$(quoted "$(uname -sr)")"
    printf '  "weft": %s,\n' "$(quoted "$("$weft" --version)")"
    printf '  "budgets": %s\n}\n' "$(quoted "$device_mib MiB of device memory, $host_mib MiB of host memory")"
  } | store machine
}

# PART PROGRAM LIMIT [CASES]: runs it, and adds its outcome to the part's
run_program() {
  local part=$1 program=$2 limit=$3 cases=("${@:4}")
  if [ ! -x "$tests/test_$program" ]; then
    note "test_$program: not built, so not run"
    [[ $program != *cuda ]] || failed=1
    return
  fi
  limited "$(smaller "$limit" "$(left)")" "$part-$program" "$tests/test_$program" "${cases[@]}"
  counts "$out/logs/$part-$program.log"
  [ "$rc" -eq 0 ] || { failed=1; note "test_$program: exit code $rc; see logs/$part-$program.log"; }
  lines+="${lines:+,}
  \"test_$program\": {
    \"passed\": $passed,
    \"failed\": $failures,
    \"exit\": $rc,
    \"seconds\": $seconds
  }"
  printf '{%s\n}\n' "$lines" | store "$part"
  write_results
}
run_smoke() {
  local lines=""
  enough smoke "$smoke_seconds" || return
  run_program smoke "$smoke" 60 "$smoke_cases"
}
run_agreement() {
  local lines=""
  enough agreement "$agreement_seconds" || return
  run_program agreement "$agreement" 120 "$agreement_cases"
}
run_tests() {
  local lines="" end=$((SECONDS + 150))
  for program in "${programs[@]}"; do
    enough "test_$program" 10 || continue
    run_program tests "$program" $((end - SECONDS > 10 ? end - SECONDS : 10))
  done
  if [ -z "$lines" ]; then echo '{}' | store tests; fi
}

run_sanitizer() {
  local sanitizer lines=""
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  echo '{}' | store sanitizer
  if [ -n "$dry" ]; then note "sanitizer: skipped, for this is a dry run"; return; fi
  if [ -z "$sanitizer" ]; then note "sanitizer: skipped, for compute-sanitizer is not installed"; return; fi
  # Every kernel once or twice, without the long random runs; racecheck looks at shared memory alone.
  local cases="h2o_cases: G*,decode attention matches*,prefill attention survives*,layer_norm matches*,log_probs*"
  for tool in memcheck racecheck; do
    enough "$tool" 30 || continue
    [ $tool = racecheck ] || cases+=",greedy*,gather picks*,add accumulates*,linear takes rows*,memory of every*"
    limited "$(smaller 60 "$(left)")" $tool "$sanitizer" --tool $tool --error-exitcode 99 \
      "$tests/test_kernels_cuda" "$cases"
    counts "$out/logs/$tool.log"
    if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then note "$tool: stopped after $seconds s, without an error so far"
    elif [ "$rc" -ne 0 ]; then failed=1; note "$tool: exit code $rc; see logs/$tool.log"
    fi
    lines+="${lines:+,}
  \"$tool\": {
    \"passed\": $passed,
    \"failed\": $failures,
    \"summary\": $(quoted "$(grep -E 'SUMMARY' "$out/logs/$tool.log" | tail -1)"),
    \"exit\": $rc,
    \"seconds\": $seconds
  }"
    printf '{%s\n}\n' "$lines" | store sanitizer
  done
}

run_ceilings() {
  enough ceilings "$([ -n "$dry" ] && echo 10 || echo "$ceilings_seconds")" || return
  limited "$(smaller 180 "$(left)")" ceilings "$weft" bench --lanes ${dry:+--quick} --backend $backend \
    --disk-dir "$out" --report "$out/.ceilings"
  if [ "$rc" -ne 0 ]; then
    failed=1
    note "ceilings: exit code $rc after $seconds s: $(tail -1 "$out/logs/ceilings.log")"
    return
  fi
  store ceilings <"$out/.ceilings" && rm "$out/.ceilings"
}

# Sets wanted, its seconds; measured_sweeps, 0 for a run to its end; and prefill, "" where it is skipped.
expect() {  # MODEL PROMPT TOKENS RETENTION POLICY
  wanted=25 measured_sweeps=0 prefill=1
  if [ "$3" -gt $((3 * sweeps)) ]; then measured_sweeps=$sweeps; fi
  [ "$1" != opt-30b ] || wanted=90
  if [ -n "$dry" ] && [ -z "$forecast" ]; then wanted=5; return; fi
  [ -n "$machine" ] || return
  local plan=$out/.plan
  "$weft" plan --model "$root/configs/models/$1.json" --machine "$machine" --prompt-len "$2" --gen-len "$3" \
    --retention "$4" --policy "$root/configs/policies/$5.json" --device-memory "${device_mib}MiB" \
    --host-memory "${host_mib}MiB" --report "$plan" >/dev/null 2>"$plan.err" ||
    { note "no plan for $1 $2+$3 $4: $(tail -1 "$plan.err")"; wanted=0; return; }
  # 7 s to start; 0.15 s a GB to make random weights and pin memory; two passes to warm up. A projection makes three
  # times its sweeps and one more.
  read -r wanted measured_sweeps prefill < <(awk -v tokens="$3" -v most="$sweeps" \
    -v prefill="$(value "$plan" predicted/seconds/prefill)" -v decode="$(value "$plan" predicted/seconds/decode)" \
    -v host="$(value "$plan" predicted/peak_bytes/host)" -v device="$(value "$plan" predicted/peak_bytes/device)" \
    'BEGIN { sweep = decode / (tokens - 1); sweeps = int(8 / sweep); if (sweeps < 2) sweeps = 2
             if (sweeps > most) sweeps = most
             if (decode < 20 || tokens <= 3 * sweeps) sweeps = 0
             skip = sweeps > 0 && prefill > 60
             seconds = 7 + 0.15e-9 * (host + device) + (skip ? 0 : prefill) + 2 * sweep
             seconds += sweeps > 0 ? 3 * (sweeps + 1) * sweep : decode
             printf "%d %d %s\n", seconds + 1, sweeps, skip ? "" : "1" }')
  rm -f "$plan" "$plan.err"
}

run_workload() {  # MODEL|PROMPT|TOKENS|RETENTION|POLICY
  local name file model prompt tokens retention policy wanted measured_sweeps prefill
  name=$(name_of "$1") file=$(file_of "$(name_of "$1")")
  IFS='|' read -r model prompt tokens retention policy <<<"$1"
  if [ -n "$resume" ] && [ -z "$full" ] && [ -e "$out/parts/$file.json" ]; then return; fi
  expect "$model" "$prompt" "$tokens" "$retention" "$policy"
  [ "$wanted" -gt 0 ] || return
  [ -n "$full" ] || enough "$name" "$wanted" || return
  local command=("$weft" bench --model "$root/configs/models/$model.json" --weights random:1)
  [ -z "$dry" ] || command=("$weft" bench --model "$root/models/demo")
  command+=(--backend "$backend" --prompt-len "$prompt" --gen-len "$tokens" --retention "$retention"
            --policy "$root/configs/policies/$policy.json" --device-memory "${device_mib}MiB"
            --host-memory "${host_mib}MiB" --disk-dir "$out" --report "$out/.workload")
  if [ -e "$out/parts/ceilings.json" ]; then command+=(--ceilings "$out/parts/ceilings.json"); fi
  if [ -z "$full" ] && [ "$measured_sweeps" -gt 0 ]; then
    command+=(--project "$measured_sweeps")
    if [ -z "$prefill" ]; then command+=(--skip-prefill); fi
  fi
  echo "gpu_check: $name"
  limited "$(left)" "$file" "${command[@]}"
  if [ "$rc" -eq 0 ]; then
    store "$file" <"$out/.workload" && rm "$out/.workload"
  else
    local why
    why="exit code $rc after $seconds s: $(tail -1 "$out/logs/$file.log")"
    if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then why="stopped after $seconds s, for the time was over"
    else failed=1
    fi
    note "$name: $why"
    printf '{\n  "error": %s,\n  "exit": %s\n}\n' "$(quoted "$why")" "$rc" | store "$file"
  fi
  write_results
}
run_all() {  # WORKLOAD...
  for workload in "$@"; do
    if [ -z "$full" ] || [ "$(name_of "$workload")" = "$full" ]; then run_workload "$workload"; fi
  done
}
run_headline() { run_all "${headline[@]}"; }
run_workloads() {
  if [ -n "$full" ]; then run_all "${headline[@]}" "${more[@]}"; fi
  run_all "${workloads[@]}"
}
run_more() { run_all "${more[@]}"; }

# Allowances, in seconds, for what depends on the processor more than on the GPU.
machine_seconds=3 smoke_seconds=25 ceilings_seconds=90 agreement_seconds=40 tests_seconds=60 sanitizer_seconds=60

# How long each step would take, in the order of a run: what no longer fits is skipped.
print_forecast() {
  local total=0 limit=$((minutes * 60)) wanted measured_sweeps prefill model prompt tokens retention policy
  step() {  # NAME SECONDS HOW
    if [ $((total + $2)) -gt "$limit" ]; then printf '%8s  %s\n' - "$1: skipped, for it would take $2 s"; return; fi
    total=$((total + $2))
    printf '%6s s  %s\n' "$2" "$1${3:+: $3}"
  }
  workload_step() {
    IFS='|' read -r model prompt tokens retention policy <<<"$1"
    expect "$model" "$prompt" "$tokens" "$retention" "$policy"
    local how="to its end"
    [ "$measured_sweeps" -eq 0 ] || how="projected from three times $measured_sweeps sweeps${prefill:-, prefill skipped}"
    if [ "$wanted" -eq 0 ]; then printf '%8s  %s\n' - "$(name_of "$1"): does not fit this machine"
    else step "$(name_of "$1")" "$wanted" "${how%1}"
    fi
  }
  for part in "${parts[@]}"; do
    if [ -n "$only" ] && [[ ",$only," != *",$part,"* ]]; then continue; fi
    case $part in
      headline) for workload in "${headline[@]}"; do workload_step "$workload"; done ;;
      workloads) for workload in "${workloads[@]}"; do workload_step "$workload"; done ;;
      more) for workload in "${more[@]}"; do workload_step "$workload"; done ;;
      *) local seconds=${part}_seconds; step "$part" "${!seconds}" ;;
    esac
  done
  printf '%6s s  in all, of %s\n' "$total" "$limit"
}
if [ -n "$forecast" ]; then
  print_forecast
  exit 0
fi

write_results  # so that a report is there from the beginning
for part in "${parts[@]}"; do
  if [ -n "$only" ] && [[ ",$only," != *",$part,"* ]]; then continue; fi
  if [ -n "$resume" ] && [ -e "$out/parts/$part.json" ]; then continue; fi
  if [ "$(left)" -le 0 ]; then
    note "$part: skipped, for the $minutes minutes are over"
    write_results
    continue
  fi
  echo "gpu_check: $part"
  "run_$part"
  write_results
done
cat "$out/table.md"
echo "gpu_check: results in $out"
[ -z "$failed" ]
