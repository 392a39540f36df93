// runtime/job/place_runner.h: runs the requests of a job in the places of its blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/job/answers.h"
#include "runtime/job/in_flight.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// Runs all requests. Returns false if it was interrupted. What was in flight in an earlier run goes first. A sequence
/// whose KV the spill file has lost continues from where it was saved last, or begins again. Throws the typed errors.
bool run_requests(Session& session, const RequestFile& requests, std::vector<std::uint32_t> indices, Answers& answers,
                  InFlight& in_flight, bool prefix_sharing);

}  // namespace weft::runtime
