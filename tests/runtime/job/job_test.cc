// tests/runtime/job/job_test.cc: a whole job over a disk that loses what was spilled to it.
#include "runtime/job/job.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "offload/disk_store.h"
#include "policy/base/json.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;

namespace {

/// Loses what is read `at` reads after the first write to the spill file, `times` times; each loss takes all attempts.
class LosingDisk {
 public:
  LosingDisk(int at, int times, bool spoils) : at_(at), left_(times) {
    faults.before = [this, spoils](offload::DiskTransfer& transfer) -> std::optional<std::int64_t> {
      written_ |= transfer.write;
      if (transfer.write || !written_) return std::nullopt;
      if (!losing_ && left_ > 0 && ++reads_ >= at_) --left_, reads_ = 0, losing_ = transfer.offset, attempts_ = 0;
      if (spoils || losing_ != transfer.offset) return std::nullopt;
      if (++attempts_ == 3) losing_.reset();
      return -EIO;
    };
    if (spoils)
      faults.after_read = [this](const offload::DiskTransfer& transfer) {
        if (losing_ != transfer.offset) return;
        transfer.data[0] ^= std::byte{1};
        if (++attempts_ == 2) losing_.reset();
      };
  }

  DiskFaults faults;

 private:
  const int at_;
  int left_, reads_ = 0, attempts_ = 0;
  bool written_ = false;
  std::optional<std::uint64_t> losing_;
};

/// What was written at one place is read wrongly until it is written again.
class RottenDisk {
 public:
  /// Rots at the `at`-th read after the first write, so many times.
  RottenDisk(int at, int times) : at_(at), left_(times) {
    faults.before = [this](offload::DiskTransfer& transfer) -> std::optional<std::int64_t> {
      written_ |= transfer.write;
      if (transfer.write && rotten_ == transfer.offset) rotten_.reset();
      if (!transfer.write && written_ && !rotten_ && left_ > 0 && ++reads_ >= at_)
        --left_, reads_ = 0, rotten_ = transfer.offset;
      return std::nullopt;
    };
    faults.after_read = [this](const offload::DiskTransfer& transfer) {
      if (rotten_ == transfer.offset) transfer.data[0] ^= std::byte{1};
    };
  }

  DiskFaults faults;

 private:
  const int at_;
  int left_, reads_ = 0;
  bool written_ = false;
  std::optional<std::uint64_t> rotten_;
};

class Job {
 public:
  Job() {
    std::string lines;
    for (int i = 0; i < 12; ++i)
      lines += R"({"prompt_ids":[2,)" + std::to_string(3 + i) + R"(,7],"max_tokens":)" +
               std::to_string(2 + 5 * (i % 3)) + (i == 4 ? R"(,"n":3,"temperature":1)" : "") + "}\n";
    write_text(folder_ / "requests.jsonl", lines);
  }

  /// The lines of the output in the order of their text.
  std::vector<std::string> run(const std::string& output, const policy::PartialPolicy& policy, DiskFaults* faults = {},
                               bool resume = false) {
    JobOptions options;
    options.model = (data_path("golden") / model).string();
    options.input = (folder_ / "requests.jsonl").string();
    options.output = (folder_ / output).string();
    options.quiet = true;
    options.policy = policy;
    options.resume.on = resume;
    options.dtype = dtype;
    options.save_every = save_every;
    options.save_seldom = false;
    options.report = (folder_ / "report.json").string();
    options.machine.backend = "cpu";
    options.machine.disk_directory = folder_.path().string();
    if (faults) options.machine.decorate_disk = with_faults(*faults);
    const std::atomic<bool> stop{false};
    const int code = run_job(options, stop);
    CHECK(code == 0);
    return lines_of(output);
  }

  /// How many sequences the last job took up amid their answers.
  std::int64_t taken_up() const {
    const auto report = policy::parse_json(read_text(folder_ / "report.json"), "report", policy::Blame::usage);
    return report.at("checkpoints").at("resumed_sequences").get<std::int64_t>();
  }

  std::string model = "prenorm-tied-f16", dtype = "auto";
  std::optional<std::chrono::duration<double>> save_every;

  std::vector<std::string> lines_of(const std::string& output) const {
    std::istringstream text(read_text(folder_ / output));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
  }

 private:
  TemporaryFolder folder_;
};

/// All of the KV cache on disk.
policy::PartialPolicy spilling(bool continuous, double on_host) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 2;
  policy.num_gpu_batches = 2;
  policy.weights = policy.activations = policy::Fractions{};
  policy.kv = policy::Fractions{{0, 0, 1}};
  policy.continuous = continuous;
  policy.attention_on_host = on_host;
  return policy;
}

}  // namespace

TEST_CASE("sequences whose KV cache the disk has lost begin again and end the same", "[runtime]") {
  const bool spoils = GENERATE(false, true), continuous = GENERATE(false, true);
  const double on_host = GENERATE(0.0, 1.0);
  const int at = GENERATE(1, 7, 40), times = GENERATE(1, 3);
  CAPTURE(spoils, continuous, on_host, at, times);
  const policy::PartialPolicy policy = spilling(continuous, on_host);
  Job job;
  const std::vector<std::string> expected = job.run("sound.jsonl", policy);
  REQUIRE(expected.size() == 12);
  LosingDisk disk(at, times, spoils);
  CHECK(job.run("lost.jsonl", policy, &disk.faults) == expected);
}

TEST_CASE("a disk that loses one thing after another ends the job, which can be continued", "[runtime]") {
  const bool spoils = GENERATE(false, true), continuous = GENERATE(false, true);
  CAPTURE(spoils, continuous);
  const policy::PartialPolicy policy = spilling(continuous, 0);
  Job job;
  const std::vector<std::string> expected = job.run("sound.jsonl", policy);
  LosingDisk disk(20, 4, spoils);
  CHECK_THROWS_AS(job.run("lost.jsonl", policy, &disk.faults), offload::LostPage);
  const std::vector<std::string> before = job.lines_of("lost.jsonl");
  CHECK(before.size() < expected.size());
  CHECK(std::includes(expected.begin(), expected.end(), before.begin(), before.end()));
  CHECK(job.run("lost.jsonl", policy, nullptr, /*resume=*/true) == expected);
}

TEST_CASE("sequences whose KV cache the disk has lost go on from where they were saved", "[runtime]") {
  const bool spoils = GENERATE(false, true), continuous = GENERATE(false, true);
  const int at = GENERATE(40, 90), times = GENERATE(1, 3);
  CAPTURE(spoils, continuous, at, times);
  const policy::PartialPolicy policy = spilling(continuous, 0);
  Job job;
  const std::vector<std::string> expected = job.run("sound.jsonl", policy);
  job.save_every = std::chrono::seconds(0);
  LosingDisk disk(at, times, spoils);
  CHECK(job.run("lost.jsonl", policy, &disk.faults) == expected);
  CHECK(job.taken_up() > 0);
}

TEST_CASE("sequences go on with another share of the experts on the host, and end the same", "[runtime][experts]") {
  const double before = GENERATE(0.0, 0.5), after = GENERATE(0.0, 0.25, 1.0);
  CAPTURE(before, after);
  policy::PartialPolicy policy = spilling(true, 0);
  Job job;
  job.model = "moe-qwen2-f16";
  const std::vector<std::string> expected = job.run("sound.jsonl", policy);
  job.save_every = std::chrono::seconds(0);
  LosingDisk disk(20, 4, true);
  policy.experts_on_host = before;
  CHECK_THROWS_AS(job.run("lost.jsonl", policy, &disk.faults), offload::LostPage);
  policy.experts_on_host = after;
  CHECK(job.run("lost.jsonl", policy, nullptr, /*resume=*/true) == expected);
  CHECK(job.taken_up() > 0);
}

TEST_CASE("weights that the spill file has lost are made again", "[runtime]") {
  const int at = GENERATE(1, 9, 30), times = GENERATE(1, 3);
  CAPTURE(at, times);
  policy::PartialPolicy policy = spilling(true, 0);
  policy.weights = policy::Fractions{{0, 0, 1}};
  policy.kv = policy::Fractions{};
  Job job;
  job.dtype = "float32";  // of a checkpoint of float16: no file has these units
  const std::vector<std::string> expected = job.run("sound.jsonl", policy);
  REQUIRE(expected.size() == 12);
  RottenDisk disk(at, times);
  CHECK(job.run("lost.jsonl", policy, &disk.faults) == expected);
}
