#include "runtime/measure/measure_links.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using offload::Lane;

constexpr std::size_t kRow = 4096, kRows = 512;  // bytes of a row of 2048 columns; a chunk's tokens
constexpr int kSlots = 256, kHeadDim = 64, kHeads = 32;
constexpr double kNominal = 1e6;

/// Fills `bytes` with what no disk makes smaller.
void fill(Memory& memory, std::size_t bytes) {
  std::generate_n(reinterpret_cast<std::uint64_t*>(memory.data()), bytes / sizeof(std::uint64_t), std::mt19937_64{1});
}

/// The files of weights, read in pieces as a run reads them, from places that are spread over all of them.
class WeightFiles {
 public:
  WeightFiles(const std::vector<std::filesystem::path>& files, const MachineOptions& options, kernels::Backend& backend,
              std::size_t piece)
      : store_(make_disk(options)) {
    constexpr std::size_t kMostFiles = 64;
    for (std::size_t i = 0; i < files.size(); i += 1 + files.size() / kMostFiles) {
      const std::size_t bytes = std::filesystem::file_size(files[i]);
      if (bytes >= kRow * 2) files_.push_back({store_->open(files[i].string()), bytes});
    }
    std::size_t largest = 0;
    for (const File& file : files_) largest = std::max(largest, file.bytes);
    piece_ = std::min(piece, largest / kRow * kRow);
    std::erase_if(files_, [&](const File& file) { return file.bytes < piece_; });
    to_ = backend.allocate_host(std::max({piece_, kRow * kRows, std::size_t{1}}));
  }
  /// Makes a file in the disk directory, as if it held weights. It has no name and goes with this object. The store
  /// writes only spill files, so this writes it directly.
  WeightFiles(std::size_t bytes, const MachineOptions& options, kernels::Backend& backend, std::size_t piece)
      : store_(make_disk(options)), piece_(piece), to_(backend.allocate_host(std::max(piece, kRow * kRows))) {
    const std::filesystem::path path = std::filesystem::path(options.disk_directory) / ".weft-measure";
    AtomicFile file(path, {.replace = false});
    fill(*to_, piece);
    for (std::size_t at = 0; at + piece <= bytes; at += piece)
      file.append({reinterpret_cast<const char*>(to_->data()), piece});
    if (fdatasync(file.fd()) != 0) throw IoError(path.string() + ": cannot be synced to measure the disk");
    files_.push_back({store_->adopt(file.keep_nameless(), path.string()), bytes / piece * piece});
  }
  bool empty() const { return files_.empty(); }

  double read() {
    const File& file = files_[random_() % files_.size()];
    store_->read({file.id, random_() % ((file.bytes - piece_) / kRow + 1) * kRow, piece_}, to_->data());
    return double(piece_);
  }
  /// Reads in one call as many rows as a chunk of tokens needs, none of them at a multiple of a page.
  double read_rows() {
    const File& file = files_[random_() % files_.size()];
    std::vector<std::size_t> places(kRows);
    for (std::size_t& place : places) place = random_() % (file.bytes / kRow - 1);
    std::sort(places.begin(), places.end());
    std::vector<offload::ReadRequest> reads;
    for (const std::size_t place : places)
      reads.push_back({{file.id, place * kRow + kRow / 3, kRow}, to_->data() + reads.size() * kRow});
    store_->read(reads);
    return double(kRows);
  }

 private:
  struct File {
    offload::FileId id;
    std::size_t bytes;
  };
  std::unique_ptr<offload::DiskStore> store_;
  std::vector<File> files_;
  std::size_t piece_ = 0;
  std::unique_ptr<Memory> to_;
  std::mt19937_64 random_{1};
};

/// A spill file.
class SpillFile {
 public:
  SpillFile(const MachineOptions& options, kernels::Backend& backend, std::size_t bytes, std::size_t piece)
      : store_(make_disk(options)), bytes_(bytes / piece * piece), piece_(piece), to_(backend.allocate_host(piece)),
        from_(backend.allocate_host(piece)), file_(store_->create_spill(options.disk_directory, bytes_)) {
    fill(*from_, piece);
  }

  /// The first write to a place of a file takes longer than those of a run, which writes there many times.
  void write_all() {
    for (std::size_t piece = 0; piece < bytes_ / piece_; ++piece) write();
  }
  double write() {
    store_->write({file_, next_written_++ % (bytes_ / piece_) * piece_, piece_}, from_->data());
    return double(piece_);
  }
  /// Reads what write() has written, and compares its checksums.
  double read() {
    const std::size_t pieces = std::clamp<std::size_t>(next_written_, 1, bytes_ / piece_);
    store_->read({file_, next_read_++ % pieces * piece_, piece_}, to_->data());
    return double(piece_);
  }

 private:
  std::unique_ptr<offload::DiskStore> store_;
  const std::size_t bytes_, piece_;
  std::unique_ptr<Memory> to_, from_;
  offload::FileId file_{};
  std::size_t next_written_ = 0, next_read_ = 0;
};

/// What is read and written to measure the disk. Either may be missing.
struct Disk {
  std::optional<WeightFiles> weights;
  std::optional<SpillFile> spill;
};

/// Warns if nothing can be spilled.
std::unique_ptr<Disk> open_disk(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                                std::uint64_t room) {
  auto disk = std::make_unique<Disk>();
  if (!sizes.weight_files.empty()) disk->weights.emplace(sizes.weight_files, options, backend, sizes.piece);
  if (disk->weights && disk->weights->empty()) disk->weights.reset();
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(sizes.file, room / 4));
  std::string why = "has no room";
  if (bytes >= sizes.piece) try {
      disk->spill.emplace(options, backend, bytes, sizes.piece);
      if (!disk->weights) disk->weights.emplace(bytes, options, backend, sizes.piece);
      return disk;
    } catch (const IoError& failed) {
      why = std::string("cannot be written (") + failed.what() + ")";
    } catch (const CapacityError& failed) {
      why = std::string("has no room (") + failed.what() + ")";
    }
  disk->spill.reset();
  log_warn("--disk-dir {}: {}; nothing is planned to be spilled there", options.disk_directory, why);
  return disk;
}

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

/// The share of a rate that is left.
double left(double rate, double alone) { return std::clamp(rate / alone, policy::Machine::kLeastTogether, 1.0); }

/// A load for every lane but the disk's.
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

  const Load& load(Lane lane) const { return loads_[index(lane)]; }

  double alone(Lane lane) {
    double& rate = alone_[index(lane)];
    if (rate > 0) return rate;
    touch(loads_[index(lane)]);
    std::vector<double> all;
    for (int i = 0; i < sizes_.timing.repetitions; ++i)
      all.push_back(rate_of(loads_[index(lane)], sizes_.timing.seconds));
    return rate = median(all);
  }

  void together(Lane first, Lane second, policy::Machine& machine) {
    const double first_alone = alone(first), second_alone = alone(second);
    std::vector<double> firsts, seconds;
    for (int i = 0; i < sizes_.timing.repetitions; ++i) {
      const auto [a, b] = rates_of(loads_[index(first)], loads_[index(second)], sizes_.timing.seconds);
      firsts.push_back(a);
      seconds.push_back(b);
    }
    machine.together[index(first)][index(second)] = left(median(firsts), first_alone);
    machine.together[index(second)][index(first)] = left(median(seconds), second_alone);
  }

 private:
  static void touch(const Load& load) {
    load.piece();
    load.wait();
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

/// Measures loads, each alone or beside another one, in rounds over all of them, so that what disturbs the machine for
/// a moment spoils few values of each.
class Rounds {
 public:
  explicit Rounds(const Timing& timing) : timing_(timing) {}

  /// `other`: beside which it is measured, or null. Both must outlive this. Returns the number of the figure.
  std::size_t add(const Load& load, const Load* other = nullptr) {
    figures_.push_back({&load, other, {}, {}});
    return figures_.size() - 1;
  }
  void run() {
    for (const Figure& figure : figures_) {  // disks and their limits allow a burst, which is not counted
      figure.load->piece();
      figure.load->wait();
    }
    for (int round = 0; round < timing_.repetitions; ++round)
      for (Figure& figure : figures_) {
        const auto [rate, beside] = figure.other ? rates_of(*figure.load, *figure.other, timing_.seconds)
                                                 : std::pair{rate_of(*figure.load, timing_.seconds), 0.0};
        figure.rates.push_back(rate);
        figure.beside.push_back(beside);
      }
  }
  double rate(std::size_t figure) const { return median(figures_[figure].rates); }
  double beside(std::size_t figure) const { return median(figures_[figure].beside); }  ///< of the other load

 private:
  struct Figure {
    const Load *load, *other;
    std::vector<double> rates, beside;
  };
  const Timing timing_;
  std::vector<Figure> figures_;
};

/// Measures the disk's lanes, each alone and in pairs with each other and with `compute`.
void measure_disk(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes, const Load& compute,
                  policy::Machine& machine) {
  constexpr auto in = index(Lane::disk_read), out = index(Lane::disk_write), device = index(Lane::device_compute);
  const std::unique_ptr<Disk> disk = open_disk(backend, options, sizes, machine[offload::Tier::disk]);
  auto& rates = machine.bytes_per_second;
  rates[in] = rates[out] = machine.spilled_read = kNominal;
  machine.disk_rows_per_second = 1;
  if (!disk->spill) machine.bytes[static_cast<std::size_t>(offload::Tier::disk)] = 0;
  const Load weights{[&] { return disk->weights->read(); }}, rows{[&] { return disk->weights->read_rows(); }},
      write{[&] { return disk->spill->write(); }}, read{[&] { return disk->spill->read(); }};
  Rounds rounds(sizes.disk);
  const std::size_t computing = rounds.add(compute);
  std::vector<std::function<void()>> results;
  const auto alone = [&](const Load& load, double& rate) {
    const std::size_t figure = rounds.add(load);
    results.emplace_back([&, figure] { rate = rounds.rate(figure); });
  };
  const auto beside = [&](const Load& load, std::size_t lane, const Load& other, std::size_t other_lane) {
    const std::size_t figure = rounds.add(load, &other);
    results.emplace_back([&, figure, lane, other_lane] {
      const double other_alone = other_lane == device ? rounds.rate(computing) : rates[other_lane];
      machine.together[lane][other_lane] = left(rounds.rate(figure), rates[lane]);
      machine.together[other_lane][lane] = left(rounds.beside(figure), other_alone);
    });
  };
  if (disk->spill) {
    disk->spill->write_all();
    alone(write, rates[out]);
    alone(read, machine.spilled_read);
  }
  if (disk->weights) {
    alone(weights, rates[in]);
    alone(rows, machine.disk_rows_per_second);
  }
  if (disk->weights && disk->spill) beside(weights, in, write, out);
  if (disk->weights) beside(weights, in, compute, device);
  if (disk->spill) beside(write, out, compute, device);
  rounds.run();
  for (const auto& result : results) result();
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
  measure_disk(backend, options, sizes, links.load(Lane::device_compute), machine);
}

void measure_disk_lanes(kernels::Backend& backend, const MachineOptions& options, const LinkSizes& sizes,
                        policy::Machine& machine) {
  const Links links(backend, sizes);
  measure_disk(backend, options, sizes, links.load(Lane::device_compute), machine);
}

}  // namespace weft::runtime
