// runtime/engine/host_experts.h: experts that the host computes where their weights lie, for all batches at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/layout/footprint.h"
#include "runtime/base/stop.h"
#include "runtime/engine/layer_data.h"
#include "runtime/engine/layers.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {

/// A layer's products of rows and experts lie one after the other: by expert, then by batch, then by row. The device
/// lane adds each in its turn.
class HostExperts {
 public:
  /// `plan`: that of the device's layers. All references must outlive it.
  HostExperts(const LayersPlan& plan, const policy::Footprint& footprint, Storage& storage, kernels::Backend& backend,
              const GracePeriod& stop);

  /// Computes the experts of a sublayer. `when` numbers the layers of all sweeps from 1 on (BlockRouting::when()),
  /// `rows` has the rows of each batch, 0 for one that is not in the sweep. Called by the host lane's thread once all
  /// routers of the layer have run and their rows are here.
  void compute(const policy::Sublayer& sub, std::uint64_t when, std::span<const std::int64_t> rows);
  /// The rows that an expert has made for a batch, by row. Called by the device lane's thread between compute() of the
  /// expert's sublayer and that of the next layer.
  View made(int expert, int batch) const;
  /// A new run begins; the lanes are empty.
  void forget() { when_ = 0; }

 private:
  void sort(int layer, std::span<const std::int64_t> rows);
  std::size_t place(int expert, int batch) const {
    return static_cast<std::size_t>(expert) * static_cast<std::size_t>(footprint_.shape.batches) +
           static_cast<std::size_t>(batch);
  }

  const policy::ModelSpec& model_;
  const policy::Footprint& footprint_;
  Storage& storage_;
  kernels::Backend& backend_;
  Layers layers_;
  std::uint64_t when_ = 0;          // the layer whose choices are sorted
  std::vector<std::size_t> begin_;  // [experts * batches + 1] in rows_, and in the rows that are made
  std::vector<std::int32_t> rows_;  // in Storage::experts_input()
};

}  // namespace weft::runtime
