#!/usr/bin/env bash
# Checks and measures weft on a machine with an NVIDIA GPU, in parts that can be run one at a time where a GPU is had for
# minutes. Runs from the source tree after a build and from an unpacked package. After every step a part writes
# results.json and table.md anew, and one archive with these, the logs and the reports: a run that is cut short or killed
# leaves what it measured.
#
#   scripts/gpu_check.sh [--part first|headline|resident|rest] [--minutes N] [--out DIR] [--archive FILE]
#                        [--only STEP,...] [--resume] [--sweeps 4] [--full WORKLOAD] [--build DIR] [--machine FILE]
#                        [--dry-run]
#
#   --part PART       without it the four run one after another
#     first     120 s  the machine, what its driver can do (tests/gpu_probe), a smoke test, the demo on three tiers, the
#                      machine's rates (a machine file, for plans and later parts), the GPU's own tests
#     headline  300 s  OPT-30B in 16 GiB of the device: h2o with int4 weights and int8 KV, int8 both, fp16; the full
#                      cache; Accelerate under the same cap
#     resident  120 s  OPT-6.7B, all of it on the device: the full cache, h2o, h2o with int8; transformers
#     rest      540 s  ceilings, OPT-6.7B in 16 GiB, what crosses the link, all tests, more of OPT-30B, compute-sanitizer
#   --minutes N       in place of the part's own time. What does not fit is skipped, and table.md says so
#   --out DIR         one folder for all parts; by default docs/results/GPU-DATE, of a dry run a temporary one
#   --archive FILE    by default DIR/PART.tar.gz, or all.tar.gz
#   --only STEP,...   of machine, probe, smoke, demo, rates, agreement, headline, accelerate, resident, transformers,
#                     ceilings, workloads, link, tests, more, sanitizer
#   --resume          goes on in --out DIR: what it holds already stays, and is not repeated
#   --sweeps N        most decode sweeps at the beginning, the middle and the end of a projected workload
#   --full WORKLOAD   runs this one to its end ("opt-30b 512+512 h2o:0.1:0.1"), and no other
#   --build DIR       where weft was built, if not in build/release
#   --machine FILE    plans with this machine file. By default with the one that `first` made in --out, or that of this
#                     GPU in configs/machines
#   --dry-run         the same steps on the CPU with a tiny model, in seconds: shows that the script works. With
#                     --machine nothing runs: prints how long each step would take on that machine, and their sum
#
# Workloads run with at most 96 GiB of host memory, and with at most 16 GiB of device memory, the CUDA context included;
# those that are resident with at most 74 GiB, so that cards can be compared. Short ones run to their end; of longer ones
# prefill does, unless it alone would take 36 s (20 where everything is resident), and decode is projected. The peers want
# torch, transformers and accelerate in python3, and are skipped otherwise. Exit code 0: nothing failed; 1: something did;
# 2: wrong flags, or no GPU.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=(first headline resident rest)
declare -A limit_of=([first]=120 [headline]=300 [resident]=120 [rest]=540)
declare -A steps_of=([first]="smoke demo rates agreement" [headline]="headline accelerate"
  [resident]="resident transformers" [rest]="ceilings workloads link tests more sanitizer")
every_step="machine probe ${steps_of[first]} ${steps_of[headline]} ${steps_of[resident]} ${steps_of[rest]}"

refuse() {
  echo "gpu_check: error: $1" >&2
  exit 2
}

part="" minutes="" out="" archive="" only="" resume="" sweeps=4 full="" build=$root/build/release machine="" dry=""
while [ $# -gt 0 ]; do
  case $1 in
    --part | --minutes | --out | --archive | --only | --sweeps | --full | --build | --machine)
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
[ -z "$part" ] || [ -n "${limit_of[$part]:-}" ] || refuse "--part: no part '$part'; there are ${parts[*]}"
[[ $minutes =~ ^[0-9]*$ ]] || refuse "--minutes wants a whole number, got '$minutes'"
[[ $sweeps =~ ^[1-9][0-9]*$ ]] || refuse "--sweeps wants a whole number from 1 on, got '$sweeps'"
[ -z "$machine" ] || [ -r "$machine" ] || refuse "--machine: $machine cannot be read"
[ -z "$resume" ] || [ -n "$out" ] || refuse "--resume wants --out, the folder to go on in"
for step in ${only//,/ }; do
  [[ " $every_step " == *" $step "* ]] || refuse "--only: no step '$step'; there are $every_step"
done
if [ -n "$part" ]; then parts=("$part"); fi

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
fi
known=""  # the machine file of this GPU, if there is one
for name in t4 a100-80gb h100 h200; do
  if [ -z "$known" ] && [[ ${gpu,,} == *${name%-*}* ]]; then known=$root/configs/machines/$name.json; fi
done
machine_file() {  # what plans are made with, if anything
  if [ -n "$machine" ]; then echo "$machine"
  elif [ -s "$out/rates.json" ]; then echo "$out/rates.json"
  else echo "$known"
  fi
}
field() {  # NAME: a number of the machine file's memory
  sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" "$machine" | head -1
}
smaller() { echo $(($1 < $2 ? $1 : $2)); }

# Workloads: model|prompt|tokens|retention|weights|KV|how. How: "resident", with up to 74 GiB of the device's memory; else within
# 16 GiB, and "" planned, or by a policy of configs/policies.
headline=() resident=() workloads=() link=() more=()
# Programs: name|cases.
if [ -n "$dry" ] && [ -z "$forecast" ]; then
  backend=cpu all_mib=48 device_mib=24 host_mib=24
  smoke=("kernels|memory of every*")
  agreement=("runtime|every tiny Qwen*")
  programs=("offload|")
  for kinds in "h2o:0.1:0.1|int4|int8" "h2o:0.1:0.1|int8|int8" "h2o:0.1:0.1|float16|float16" "full|float16|float16"; do
    headline+=("demo|16|40|$kinds|opt-30b-16gib")
  done
  resident+=("demo|16|8|full|float16|float16|resident" "demo|16|8|h2o:0.1:0.1|float16|float16|resident")
  for retention in full h2o:0.1:0.1; do workloads+=("demo|16|8|$retention|float16|float16|opt-6.7b-16gib"); done
  link+=("demo|16|8|full|float16|float16|kv-over-the-link")
else
  backend=cuda
  if [ -n "$forecast" ]; then
    all_mib=$(($(field device) >> 20)) host_mib=$(smaller $(($(field host) >> 20)) 98304)
  else
    all_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits -i 0)
    all_mib=$((all_mib * 95 / 100))
    host_mib=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    group=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
    if [ "$group" != max ]; then host_mib=$(smaller "$host_mib" $((group >> 20))); fi
    host_mib=$(smaller $((host_mib * 80 / 100)) 98304)
  fi
  device_mib=$(smaller "$all_mib" 16384)
  all_mib=$(smaller "$all_mib" 75776)
  # A kernel test, and copies across the places where a driver may end a registration of host memory.
  smoke=("kernels_cuda|memory of every*,large host memory*,decode attention matches*")
  agreement=("kernels_cuda|" "runtime_cuda|")
  programs=("kernels|" "offload|" "policy|" "runtime|")
  for kinds in "h2o:0.1:0.1|int4|int8" "h2o:0.1:0.1|int8|int8" "h2o:0.1:0.1|float16|float16" "full|float16|float16"; do
    headline+=("opt-30b|512|512|$kinds|")
  done
  resident+=("opt-6.7b|512|32|full|float16|float16|resident" "opt-6.7b|512|128|h2o:0.1:0.1|float16|float16|resident"
    "opt-6.7b|512|32|h2o:0.1:0.1|int8|int8|resident")
  for shape in "512|32" "512|512" "512|1024"; do
    for retention in full h2o:0.1:0.1; do workloads+=("opt-6.7b|$shape|$retention|float16|float16|opt-6.7b-16gib"); done
  done
  for model in opt-6.7b opt-30b; do
    for retention in full h2o:0.1:0.1; do link+=("$model|512|512|$retention|float16|float16|kv-over-the-link"); done
  done
  for retention in h2o:0.1:0.1 full; do
    more+=("opt-30b|512|32|$retention|float16|float16|opt-30b-16gib-short"
      "opt-30b|512|1024|$retention|float16|float16|opt-30b-16gib")
  done
fi
all_workloads=("${headline[@]}" "${resident[@]}" "${workloads[@]}" "${link[@]}" "${more[@]}")
name_of() {  # WORKLOAD
  local model prompt tokens retention weights kv how
  IFS='|' read -r model prompt tokens retention weights kv how <<<"$1"
  local name="$model $prompt+$tokens $retention"
  if [ "$weights $kv" != "float16 float16" ]; then name+=" $weights+$kv"; fi
  case $how in resident) name+=" resident" ;; kv-over-the-link) name+=" over the link" ;; esac
  echo "$name"
}
file_of() { echo "${1//[ +:]/-}"; }  # NAME
if [ -n "$full" ]; then
  there=""
  for workload in "${all_workloads[@]}"; do there+="; $(name_of "$workload")"; done
  [[ "$there;" == *"; $full;"* ]] || refuse "--full: no workload '$full'; there are${there#;}"
fi
wanted_step() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }  # STEP

date=$(date +%Y-%m-%d)
slug=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
export PYTHONDONTWRITEBYTECODE=1  # nothing is left in the source
scratch=$(mktemp -d) || refuse "no folder for temporary files"
trap 'rm -rf "$scratch"' EXIT
if [ -n "$forecast" ]; then out=$scratch
elif [ -z "$out" ] && [ -n "$dry" ]; then out=$(mktemp -d -t weft-gpu-check-XXXXXX)
fi
out=${out:-$root/docs/results/$slug-$date}
mkdir -p "$out/parts" "$out/logs" 2>/dev/null || refuse "$out cannot be written to"
out=$(cd "$out" && pwd)
archive=${archive:-$out/${part:-all}.tar.gz}
if [ -z "$resume" ] && [ -z "$forecast" ]; then  # what other parts left stays
  for part in "${parts[@]}"; do
    for step in machine probe ${steps_of[$part]}; do
      wanted_step "$step" || continue
      rm -f "$out/parts/$step.json"
      case $step in rates) rm -f "$out/rates.json" ;;
        headline | resident | workloads | link | more)
          declare -n list=$step
          for workload in "${list[@]}"; do rm -f "$out/parts/$(file_of "$(name_of "$workload")").json"; done ;;
      esac
    done
  done
fi
export WEFT_SOURCE_DIR=$root PYTHONDONTWRITEBYTECODE=1
failed="" notes=() deadline=0
left() { echo $((deadline - SECONDS)); }

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
    for step in machine probe smoke demo rates agreement accelerate transformers ceilings tests sanitizer; do
      printf ',\n"%s": ' "$step"
      if [ -e "$out/parts/$step.json" ]; then cat "$out/parts/$step.json"; else echo null; fi
    done
    printf ',\n"workloads": {'
    comma=""
    for workload in "${all_workloads[@]}"; do
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
  local files=(results.json table.md parts logs)
  if [ -s "$out/rates.json" ]; then files+=(rates.json); fi
  tar czf "$archive.next" --warning=no-file-changed --exclude=.next -C "$out" "${files[@]}"
  [ $? -le 1 ] && mv "$archive.next" "$archive"  # 1: a log grew meanwhile
}

table() {
  local file=$out/parts/machine.json
  printf '# weft on %s, %s\n\n' "$gpu" "$date"
  values "$file" | awk -F'\t' '{ gsub(/"/, "", $2); print "- " $1 ": " $2 }'
  values "$out/parts/probe.json" | awk -F'\t' '{ gsub(/"/, "", $2); gsub(/_/, " ", $1); print "- probe, " $1 ": " $2 }'
  file=$out/parts/demo.json
  if [ -n "$(value "$file" answers)" ]; then
    printf -- '- demo on three tiers: %s answers, %s of them those of the CPU\n' "$(value "$file" answers)" \
      "$(value "$file" equal)"
  fi
  printf '\n| tests | passed | failed | seconds |\n|---|---|---|---|\n'
  for step in smoke agreement tests sanitizer; do
    for program in $(values "$out/parts/$step.json" | sed -n 's|/passed\t.*||p'); do
      file=$out/parts/$step.json
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
  printf '\n%s\n|---|---|---|---|---|---|---|---|---|---|---|\n' \
    '| workload | block | tokens/s | predicted | prefill | decode | bound | achieved | decode alone | longest lane | measured |'
  for workload in "${all_workloads[@]}"; do table_row "$(name_of "$workload")"; done
  for peer in accelerate transformers; do
    file=$out/parts/$peer.json
    if [ -n "$(value "$file" total)" ]; then
      printf '| %s, %s | %s | %s | | %s | %s | | | | | projected |\n' "$peer" "$(value "$file" workload)" \
        "$(value "$file" batch)" "$(value "$file" total 1 %.2f)" "$(value "$file" prefill 1 %.0f)" \
        "$(value "$file" decode 1 %.2f)"
    fi
  done
  printf '\n'
  for note in "${notes[@]}"; do printf -- '- %s\n' "$note"; done
}
table_row() {  # NAME
  local file
  file=$out/parts/$(file_of "$1").json
  [ -e "$file" ] || return
  local error
  error=$(value "$file" error)
  if [ -n "$error" ]; then printf '| %s | | | | | | | | | | %s |\n' "$1" "$error"; return; fi
  printf '| %s | %s x %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" \
    "$(value "$file" policy/gpu_batch_size)" "$(value "$file" policy/num_gpu_batches)" \
    "$(value "$file" tokens_per_second/total/median 1 %.1f)" \
    "$(value "$file" predicted/tokens_per_second/total 1 %.1f)" \
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
stopped() { [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; }  # by limited()
counts() {  # LOG: sets passed and failed, from Catch2's closing line
  read -r passed failures < <(awk '/^All tests passed/ { sub(/.* in /, ""); print $1, 0; found = 1 }
    /^test cases:/ { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed") p = $i; if ($(i + 1) == "failed") f = $i }
      print p + 0, f + 0; found = 1 }
    END { if (!found) print 0, 1 }' "$1" | tail -1)
}

run_machine() {
  local size free kind driver memory generation most width most_width
  read -r size free kind < <(df -h --output=size,avail,fstype "$scratch" | tail -1)
  {
    printf '{\n'
    if [ -z "$dry" ]; then
      local pci=pcie.link
      IFS=, read -r driver memory generation most width most_width < <(nvidia-smi -i 0 --format=csv,noheader \
        "--query-gpu=driver_version,memory.total,$pci.gen.current,$pci.gen.max,$pci.width.current,$pci.width.max" |
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

# What the driver does. In a dry run the simulated GPU, if it was built.
run_probe() {
  local program=$tests/gpu_probe size=1024
  if [ -n "$dry" ]; then program=$tests/gpu_probe_sim size=64
  elif [ "$part" = first ]; then size=8192
  fi
  if [ ! -x "$program" ]; then note "probe: skipped, for there is no $program"; return; fi
  limited "$(smaller 30 "$(left)")" probe "$program" "$size"
  if [ "$rc" -ne 0 ]; then
    note "probe: exit code $rc after $seconds s: $(tail -1 "$out/logs/probe.log")"
    failed=1
    return
  fi
  store probe <"$out/logs/probe.log"
}

# STEP LIMIT NAME|CASES...: runs these programs side by side, and adds their outcomes to the step's
run_programs() {
  local step=$1 limit program cases log
  limit=$(smaller "$2" "$(left)")
  shift 2
  for each in "$@"; do
    IFS='|' read -r program cases <<<"$each"
    if [ ! -x "$tests/test_$program" ]; then
      note "test_$program: not built, so not run"
      [[ $program != *cuda ]] || failed=1
      continue
    fi
    (limited "$limit" "$step-$program" "$tests/test_$program" ${cases:+"$cases"}
     echo "$rc $seconds" >"$scratch/$program") &
  done
  wait
  for each in "$@"; do
    program=${each%%|*} log=$out/logs/$step-${each%%|*}.log
    read -r rc seconds <"$scratch/$program" 2>/dev/null || continue
    rm "$scratch/$program"
    counts "$log"
    [ "$rc" -eq 0 ] || { failed=1; note "test_$program: exit code $rc; see logs/$step-$program.log"; }
    lines+="${lines:+,}
  \"test_$program\": {
    \"passed\": $passed,
    \"failed\": $failures,
    \"exit\": $rc,
    \"seconds\": $seconds
  }"
  done
  printf '{%s\n}\n' "$lines" | store "$step"
}
run_smoke() {
  local lines=""
  enough smoke "$smoke_seconds" || return
  run_programs smoke 60 "${smoke[@]}"
}
run_agreement() {
  local lines=""
  enough agreement 20 || return  # what does not finish is stopped
  run_programs agreement 120 "${agreement[@]}"
}
run_tests() {
  local lines="" end=$((SECONDS + 150))
  for program in "${programs[@]}"; do
    enough "test_${program%%|*}" 10 || continue
    run_programs tests $((end - SECONDS > 10 ? end - SECONDS : 10)) "$program"
    write_results
  done
  if [ -z "$lines" ]; then echo '{}' | store tests; fi
}

# The demo of quickstart.sh, on this backend and on the CPU.
run_demo() {
  local answers equal total=0
  if [ ! -d "$root/models/demo" ]; then note "demo: skipped, for there is no models/demo"; return; fi
  enough demo 10 || return
  for where in cpu "$backend"; do
    rm -f "$out/logs/demo-$where.jsonl"*
    limited "$(smaller 60 "$(left)")" "demo-$where" "$weft" generate --model "$root/models/demo" \
      --input "$root/configs/examples/prompts.jsonl" --output "$out/logs/demo-$where.jsonl" \
      --policy "$root/configs/policies/demo-three-tiers.json" --disk-dir "$scratch" --backend "$where" --quiet
    total=$((total + seconds))
    [ "$rc" -eq 0 ] || { failed=1; note "demo, --backend $where: exit code $rc: $(tail -1 "$out/logs/demo-$where.log")"; }
  done
  answers=$(cat "$out/logs/demo-$backend.jsonl" 2>/dev/null | wc -l)
  equal=$(comm -12 <(sort "$out/logs/demo-$backend.jsonl" 2>/dev/null) <(sort "$out/logs/demo-cpu.jsonl" 2>/dev/null) | wc -l)
  printf '{\n  "answers": %s,\n  "equal": %s,\n  "seconds": %s\n}\n' "$answers" "$equal" "$total" | store demo
}

# A machine file, which the plans of later parts use.
run_rates() {
  enough rates "$([ -n "$dry" ] && echo 10 || echo 40)" || return
  limited "$(left)" rates "$weft" bench --lanes ${dry:+--quick} --save "$scratch/rates.json" --name "$gpu" \
    --backend $backend --disk-dir "$scratch"
  if [ "$rc" -ne 0 ]; then
    stopped || failed=1
    note "rates: exit code $rc after $seconds s: $(tail -1 "$out/logs/rates.log")"
    return
  fi
  cp "$scratch/rates.json" "$out/.rates" && mv "$out/.rates" "$out/rates.json"
  printf '{\n  "seconds": %s\n}\n' "$seconds" | store rates
}

# STEP MODEL PROMPT TOKENS BATCHES DEVICE CAP STEPS: transformers, whose weights Accelerate places
run_peer() {
  local step=$1 missing
  if [ -n "$dry" ]; then note "$step: skipped, for this is a dry run"; return; fi
  for package in torch transformers accelerate; do
    if ! python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" 2>/dev/null; then
      missing=$package
    fi
  done
  if [ -n "${missing:-}" ]; then note "$step: skipped, for python3 has no package $missing"; return; fi
  local seconds_wanted=${step}_seconds
  enough "$step" "${!seconds_wanted}" || return
  limited "$(left)" "$step" python3 "$root/scripts/compare/run_accelerate.py" --config "$root/configs/models/$2.json" \
    --prompt-len "$3" --batch "$5" --max-memory "0=$6,cpu=${host_mib}MiB" --cap "$7" --steps "$8" --dtype float16
  if [ "$rc" -ne 0 ]; then
    stopped || failed=1
    note "$step: exit code $rc after $seconds s: $(tail -1 "$out/logs/$step.log")"
    return
  fi
  PYTHONPATH="$root/scripts/compare" python3 - "$out/logs/$step.log" "$4" "$2 $3+$4" >"$scratch/$step" <<'PY'
import json, sys
from generation_loop import rates
log, tokens, workload = sys.argv[1:]
times = next(json.loads(line) for line in open(log) if line.startswith("{"))
print(json.dumps({"workload": workload} | times | rates(times, times["batch"], int(tokens)), indent=2))
PY
  store "$step" <"$scratch/$step"
}
# As many weights on the device as leave room for the KV of 8 sequences of 1,024 tokens, 11.3 GB.
run_accelerate() { run_peer accelerate opt-30b 512 512 8 3GiB "$device_mib" 3; }
run_transformers() { run_peer transformers opt-6.7b 512 32 128,64,32,8 "${all_mib}MiB" "$all_mib" 24; }

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
    if stopped; then note "$tool: stopped after $seconds s, without an error so far"
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
    --disk-dir "$scratch" --report "$scratch/ceilings"
  if [ "$rc" -ne 0 ]; then
    stopped || failed=1
    note "ceilings: exit code $rc after $seconds s: $(tail -1 "$out/logs/ceilings.log")"
    return
  fi
  store ceilings <"$scratch/ceilings"
}

# Sets flags, those that a plan and a run share, and layout, those of the policy.
flags_of() {  # MODEL PROMPT TOKENS RETENTION WEIGHTS KV HOW
  local memory=$device_mib file
  if [ "$7" = resident ]; then memory=$all_mib; fi
  flags=(--prompt-len "$2" --gen-len "$3" --retention "$4" --device-memory "${memory}MiB" --host-memory "${host_mib}MiB")
  [ "$5" = float16 ] || flags+=(--weight-dtype "$5")
  [ "$6" = float16 ] || flags+=(--kv-dtype "$6")
  case $7 in
    "") layout=() ;;
    resident) layout=(--percent 100 0 100 0 100 0) ;;
    *) layout=(--policy "$root/configs/policies/$7.json") ;;
  esac
  file=$(machine_file)
  [ -z "$file" ] || flags+=(--machine "$file")
}
# Sets wanted, its seconds; measured_sweeps, 0 for a run to its end; and prefill, "" where it is skipped. Leaves the policy
# that was planned in $scratch/policy.json, so that the run need not plan again.
expect() {  # MODEL PROMPT TOKENS RETENTION WEIGHTS KV HOW
  wanted=25 measured_sweeps=0 prefill=1
  if [ "$3" -gt $((3 * sweeps)) ]; then measured_sweeps=$sweeps; fi
  [ "$1" != opt-30b ] || wanted=60
  if [ -n "$dry" ] && [ -z "$forecast" ]; then wanted=5; return; fi
  [ -n "$(machine_file)" ] || return
  local plan=$scratch/plan
  flags_of "$@"
  "$weft" plan --model "$root/configs/models/$1.json" "${flags[@]}" "${layout[@]}" --report "$plan" \
    --output "$scratch/policy.json" >/dev/null 2>"$plan.err" ||
    { note "no plan for $1 $2+$3 $4: $(tail -1 "$plan.err")"; wanted=0; return; }
  # 5 s to plan, where that is still to be done, and 4 to start; 0.15 s a GB to make random weights and pin memory; two
  # passes to warm up. A projection makes three times its sweeps and one more.
  read -r wanted measured_sweeps prefill < <(awk -v tokens="$3" -v most="$sweeps" \
    -v prefill="$(value "$plan" predicted/seconds/prefill)" -v decode="$(value "$plan" predicted/seconds/decode)" \
    -v host="$(value "$plan" predicted/peak_bytes/host)" -v device="$(value "$plan" predicted/peak_bytes/device)" \
    -v most_prefill="$([ "$7" = resident ] && echo 20 || echo 36)" -v start="$([ -n "$forecast" ] && echo 9 || echo 4)" \
    'BEGIN { sweep = decode / (tokens - 1); sweeps = int(4 / sweep); if (sweeps < 1) sweeps = 1
             if (sweeps > most) sweeps = most
             if (decode < 10 || tokens <= 3 * sweeps) sweeps = 0
             skip = sweeps > 0 && prefill > most_prefill
             seconds = start + 0.15e-9 * (host + device) + (skip ? 0 : prefill) + 2 * sweep
             seconds += sweeps > 0 ? 3 * (sweeps + 1) * sweep : decode
             printf "%d %d %s\n", seconds + 1, sweeps, skip ? "" : "1" }')
}

run_workload() {  # WORKLOAD
  local name file model prompt tokens retention weights kv how wanted measured_sweeps prefill flags layout
  name=$(name_of "$1") file=$(file_of "$(name_of "$1")")
  IFS='|' read -r model prompt tokens retention weights kv how <<<"$1"
  if [ -n "$resume" ] && [ -z "$full" ] && [ -e "$out/parts/$file.json" ]; then return; fi
  rm -f "$scratch/policy.json"
  expect "$model" "$prompt" "$tokens" "$retention" "$weights" "$kv" "$how"
  [ "$wanted" -gt 0 ] || return
  [ -n "$full" ] || enough "$name" "$wanted" || return
  local command=("$weft" bench --model "$root/configs/models/$model.json" --weights random:1)
  [ -z "$dry" ] || command=("$weft" bench --model "$root/models/demo")
  flags_of "$model" "$prompt" "$tokens" "$retention" "$weights" "$kv" "$how"
  if [ -s "$scratch/policy.json" ]; then layout=(--policy "$scratch/policy.json"); fi
  command+=(--backend "$backend" "${flags[@]}" "${layout[@]}" --disk-dir "$scratch" --report "$scratch/workload")
  if [ -e "$out/parts/ceilings.json" ]; then command+=(--ceilings "$out/parts/ceilings.json"); fi
  if [ -z "$full" ] && [ "$measured_sweeps" -gt 0 ]; then
    command+=(--project "$measured_sweeps")
    if [ -z "$prefill" ]; then command+=(--skip-prefill); fi
  fi
  echo "gpu_check: $name"
  limited "$(left)" "$file" "${command[@]}"
  if [ "$rc" -eq 0 ]; then
    store "$file" <"$scratch/workload" && rm "$scratch/workload"
  else
    local why
    why="exit code $rc after $seconds s: $(tail -1 "$out/logs/$file.log")"
    if stopped; then why="stopped after $seconds s, for the time was over"
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
run_resident() { run_all "${resident[@]}"; }
run_workloads() {
  if [ -n "$full" ] && [ "$only" = workloads ]; then run_all "${all_workloads[@]}"; else run_all "${workloads[@]}"; fi
}
run_link() { run_all "${link[@]}"; }
run_more() { run_all "${more[@]}"; }

# Allowances, in seconds, for what depends on the processor more than on the GPU.
# shellcheck disable=SC2034  # used by their names
machine_seconds=1 probe_seconds=4 smoke_seconds=12 demo_seconds=8 rates_seconds=45 agreement_seconds=45 \
  accelerate_seconds=55 transformers_seconds=35 ceilings_seconds=110 tests_seconds=60 sanitizer_seconds=60

# How long each step of a part would take, in the order of a run: what no longer fits is skipped.
print_forecast() {  # PART SECONDS
  local total=0 limit=$2 wanted measured_sweeps prefill model prompt tokens retention weights kv how flags layout
  add() {  # NAME SECONDS HOW
    if [ $((total + $2)) -gt "$limit" ]; then printf '%8s  %s\n' - "$1: skipped, for it would take $2 s"; return; fi
    total=$((total + $2))
    printf '%6s s  %s\n' "$2" "$1${3:+: $3}"
  }
  add_workload() {
    IFS='|' read -r model prompt tokens retention weights kv how <<<"$1"
    expect "$model" "$prompt" "$tokens" "$retention" "$weights" "$kv" "$how"
    local said="to its end"
    [ "$measured_sweeps" -eq 0 ] || said="projected from three times $measured_sweeps sweeps"
    [ -n "$prefill" ] || said+=", prefill skipped"
    if [ "$wanted" -eq 0 ]; then printf '%8s  %s\n' - "$(name_of "$1"): does not fit this machine"
    else add "$(name_of "$1")" "$wanted" "$said"
    fi
  }
  echo "$1:"
  for step in machine probe ${steps_of[$1]}; do
    wanted_step "$step" || continue
    case $step in
      headline | resident | workloads | link | more)
        local -n list=$step
        for workload in "${list[@]}"; do add_workload "$workload"; done ;;
      *) local seconds=${step}_seconds; add "$step" "${!seconds}" ;;
    esac
  done
  printf '%6s s  in all, of %s\n' "$total" "$limit"
}
if [ -n "$forecast" ]; then
  for part in "${parts[@]}"; do print_forecast "$part" "$((${minutes:-0} > 0 ? minutes * 60 : limit_of[$part]))"; done
  exit 0
fi

deadline=$((SECONDS + ${minutes:-0} * 60))
write_results  # so that a report is there from the beginning
begun=" "
for part in "${parts[@]}"; do
  if [ -z "$minutes" ]; then deadline=$((SECONDS + limit_of[$part])); fi
  for step in machine probe ${steps_of[$part]}; do
    wanted_step "$step" || continue
    if [[ $begun == *" $step "* ]]; then continue; fi
    begun+="$step "
    if [ -n "$resume" ] && [ -e "$out/parts/$step.json" ]; then continue; fi
    if [ "$(left)" -le 0 ]; then
      note "$step: skipped, for the time of $part is over"
      write_results
      continue
    fi
    echo "gpu_check: $step"
    "run_$step"
    write_results
  done
done
cat "$out/table.md"
echo "gpu_check: results in $out, and all of it in $archive"
[ -z "$failed" ]
