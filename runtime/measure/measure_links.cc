#include "runtime/measure/measure_links.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <utility>

#include "kernels/error.h"
#include "runtime/base/files.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using offload::Lane;

constexpr std::size_t kRow = 4096, kRows = 512;  // bytes of a row of 2048 columns; a chunk's tokens
constexpr int kSlots = 256, kHeadDim = 64, kHeads = 32;
constexpr double kNominal = 1e6;

/// A file that is read as checkpoints are, without checksums, and a spill file that is written.
class DiskFiles {
 public:
  DiskFiles(const MachineOptions& options, kernels::Backend& backend, std::size_t bytes, std::size_t piece)
      : store_(make_disk(options)), bytes_(bytes / piece * piece), piece_(piece), to_(backend.allocate_host(piece)),
        from_(backend.allocate_host(piece)), rows_(backend.allocate_host(kRow * kRows)) {
    std::generate_n(reinterpret_cast<std::uint64_t*>(from_->data()), piece / sizeof(std::uint64_t), random_);
    written_ = store_->create_spill(options.disk_directory, bytes_);
    read_ = make_file(options.disk_directory);
  }

  double read() {
    store_->read({read_, next(next_read_), piece_}, to_->data());
    return double(piece_);
  }
  /// Reads what write() has written, and compares its checksums.
  double read_spilled() {
    const std::size_t pieces = std::clamp<std::size_t>(next_written_, 1, bytes_ / piece_);
    store_->read({written_, next_spilled_++ % pieces * piece_, piece_}, to_->data());
    return double(piece_);
  }
  double write() {
    store_->write({written_, next(next_written_), piece_}, from_->data());
    return double(piece_);
  }
  /// Reads in one call as many rows as a chunk of tokens needs, none of them at a multiple of a page.
  double read_rows() {
    std::vector<std::size_t> places(kRows);
    for (std::size_t& place : places) place = random_() % (bytes_ / kRow - 1);
    std::sort(places.begin(), places.end());
    std::vector<offload::ReadRequest> reads;
    for (const std::size_t place : places)
      reads.push_back({{read_, place * kRow + kRow / 3, kRow}, rows_->data() + reads.size() * kRow});
    store_->read(reads);
    return double(kRows);
  }

 private:
  std::size_t next(std::size_t& piece) const { return piece++ % (bytes_ / piece_) * piece_; }

  /// Makes a file without a name. The store writes only spill files, so this writes it directly.
  offload::FileId make_file(const std::string& directory) {
    const std::filesystem::path path = std::filesystem::path(directory) / ".weft-measure";
    AtomicFile file(path, {.replace = false});
    for (std::size_t at = 0; at < bytes_; at += piece_)
      file.append({reinterpret_cast<const char*>(from_->data()), piece_});
    if (fdatasync(file.fd()) != 0)
      throw IoError(path.string() + ": cannot be synced to measure the disk; name another --disk-dir");
    return store_->adopt(file.keep_nameless(), path.string());
  }

  std::unique_ptr<offload::DiskStore> store_;
  std::size_t bytes_, piece_;
  std::unique_ptr<Memory> to_, from_, rows_;
  std::mt19937_64 random_{1};
  offload::FileId written_{}, read_{};
  std::size_t next_read_ = 0, next_written_ = 0, next_spilled_ = 0;
};

/// A load of pieces of `count` calls, each of which does `work`. Several pieces are queued at a time.
Load fed(Timer& timer, double work, const Timer::Queue& queue, int count = 1) {
  const auto piece = [&timer, work, queue, count] {
    timer.feed(queue, count);
    return work * count;
  };
  return {piece, [&timer] { timer.wait(); }};
}

/// The same in pieces of about a millisecond, so that waiting for each costs little.
Load in_pieces(Timer& timer, double work, const Timer::Queue& queue) {
  timer.run(queue, 1);
  return fed(timer, work, queue, static_cast<int>(std::clamp(std::ceil(1e-3 / timer.run(queue, 1)), 1.0, 1000.0)));
}

/// A load for every lane.
class Links {
 public:
  Links(kernels::Backend& backend, const LinkSizes& sizes)
      : backend_(backend), sizes_(sizes), device_(backend, Side::device), host_(backend, Side::host),
        in_(backend, Side::device), out_(backend, Side::device),
        near_bytes_(std::max<std::size_t>(1, sizes.host / sizes.copy) * sizes.copy),
        near_(backend.allocate_host(2 * near_bytes_)), far_(backend.allocate_device(2 * sizes.copy)),
        weights_(device_.random(sizes.weights / size_of(DType::f16), DType::f16)),
        linear_(device_, DType::f16, kLinearRows, width(backend), width(backend), {weights_->data(), weights_->bytes()},
                true),
        decode_(host_, kHeads, kSlots, kHeadDim, DType::f16, sizes.kv) {
    std::fill_n(near_->data(), near_->bytes(), std::byte{1});
    loads_[index(Lane::host_to_device)] = fed(in_, double(sizes.copy), [this](Stream& stream) {
      backend_.copy(far_->data(), near_->data() + next(at_in_), sizes_.copy, stream);
    });
    loads_[index(Lane::device_to_host)] = fed(out_, double(sizes.copy), [this](Stream& stream) {
      backend_.copy(near_->data() + near_bytes_ + next(at_out_), far_->data() + sizes_.copy, sizes_.copy, stream);
    });
    loads_[index(Lane::device_compute)] =
        in_pieces(device_.timer(), linear_.flops(), [this](Stream& stream) { linear_.queue(stream); });
    loads_[index(Lane::host_compute)] =
        in_pieces(host_.timer(), decode_.bytes(), [this](Stream& stream) { decode_.queue(stream); });
  }

  void add_disk(DiskFiles& disk) {
    loads_[index(Lane::disk_read)] = {[&disk] { return disk.read(); }};
    loads_[index(Lane::disk_write)] = {[&disk] { return disk.write(); }};
  }

  double alone(Lane lane) {
    double& rate = alone_[index(lane)];
    if (rate > 0) return rate;
    touch(loads_[index(lane)]);
    return rate = taken(loads_[index(lane)], timing_of(lane));
  }

  void together(Lane first, Lane second, policy::Machine& machine) {
    const double first_alone = alone(first), second_alone = alone(second);
    const Timing& timing = timing_of(first);
    std::vector<double> firsts, seconds;
    for (int i = 0; i < timing.repetitions; ++i) {
      const auto [a, b] = rates_of(loads_[index(first)], loads_[index(second)], timing.seconds);
      firsts.push_back(a);
      seconds.push_back(b);
    }
    machine.together[index(first)][index(second)] = std::min(1.0, median(firsts) / first_alone);
    machine.together[index(second)][index(first)] = std::min(1.0, median(seconds) / second_alone);
  }

  static double taken(const Load& load, const Timing& timing) {
    std::vector<double> all;
    for (int i = 0; i < timing.repetitions; ++i) all.push_back(rate_of(load, timing.seconds));
    return median(all);
  }

 private:
  static void touch(const Load& load) {
    load.piece();
    load.wait();
  }
  const Timing& timing_of(Lane lane) const {
    return lane == Lane::disk_read || lane == Lane::disk_write ? sizes_.disk : sizes_.timing;
  }

  static constexpr int kLinearRows = 32;  // keep both memory and arithmetic busy, as decode does
  /// A GPU's products take several times as long as their launches, so that a thread that has to share its core still
  /// launches fast enough.
  int width(const kernels::Backend& backend) const {
    const bool room = sizes_.weights >= 8 * std::size_t{4096} * 4096 * size_of(DType::f16);
    return !backend.device_is_host_memory() && room ? 4096 : 2048;
  }
  /// The place of the next copy.
  std::size_t next(std::size_t& at) const { return std::exchange(at, (at + sizes_.copy) % near_bytes_); }

  kernels::Backend& backend_;
  const LinkSizes& sizes_;
  Workbench device_, host_;
  Timer in_, out_;
  const std::size_t near_bytes_;  // of a direction
  std::size_t at_in_ = 0, at_out_ = 0;
  std::unique_ptr<Memory> near_, far_, weights_;
  LinearWork linear_;
  DecodeWork decode_;
  std::array<Load, offload::kLanes.size()> loads_;
  std::array<double, offload::kLanes.size()> alone_{};
};

void measure_disk_lanes(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes, Links& links,
                        policy::Machine& machine) {
  auto& rates = machine.bytes_per_second;
  rates[index(Lane::disk_read)] = rates[index(Lane::disk_write)] = kNominal;
  machine.disk_rows_per_second = 1;
  machine.spilled_read = kNominal;
  std::optional<DiskFiles> disk;
  try {
    const auto file = std::min<std::uint64_t>(sizes.file, machine[offload::Tier::disk] / 4);
    if (file >= sizes.piece) disk.emplace(options, backend, file, sizes.piece);
  } catch (const IoError&) {
  } catch (const CapacityError&) {}
  if (!disk) {
    machine.bytes[static_cast<std::size_t>(offload::Tier::disk)] = 0;
    return;
  }
  links.add_disk(*disk);
  rates[index(Lane::disk_write)] = links.alone(Lane::disk_write);
  rates[index(Lane::disk_read)] = links.alone(Lane::disk_read);
  machine.spilled_read = Links::taken({[&] { return disk->read_spilled(); }}, sizes.disk);
  machine.disk_rows_per_second = Links::taken({[&] { return disk->read_rows(); }}, sizes.timing);
  links.together(Lane::disk_read, Lane::disk_write, machine);
  links.together(Lane::disk_read, Lane::device_compute, machine);
  links.together(Lane::disk_write, Lane::device_compute, machine);
}

}  // namespace

void measure_links(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                   policy::Machine& machine) {
  for (auto& others : machine.together) others.fill(1);
  Links links(backend, sizes);
  for (const Lane lane : {Lane::host_to_device, Lane::device_to_host}) {
    machine.bytes_per_second[index(lane)] = links.alone(lane);
    links.together(lane, Lane::device_compute, machine);
  }
  if (!backend.device_is_host_memory()) {
    links.together(Lane::host_to_device, Lane::device_to_host, machine);
    links.together(Lane::host_to_device, Lane::host_compute, machine);
    links.together(Lane::device_compute, Lane::host_compute, machine);
  }
  measure_disk_lanes(backend, options, sizes, links, machine);
}

}  // namespace weft::runtime
