// tests/policy/rolling_test.cc: positions past the context, and which sequences may go there.
#include "policy/layout/rolling.h"

#include <catch2/catch.hpp>

#include "kernels/error.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::Retention;
using policy::Rolling;

namespace {

policy::ModelSpec rotary_model() {
  policy::ModelSpec model;
  model.architecture = "llama";
  model.positions = 16;
  model.rotary = {1, 0.5f};
  return model;
}

}  // namespace

TEST_CASE("positions count to the context's end, and from the budget on again", "[policy]") {
  // As it happens: a counter that drops to the budget.
  for (const std::int64_t budget : {1, 5, 15}) {
    const Rolling rolling{16};
    std::int64_t position = 0;
    for (std::int64_t index = 0; index < 200; ++index, ++position) {
      const bool moves = position == 16;
      if (moves) position = budget;
      CAPTURE(budget, index);
      REQUIRE(rolling.position(index, budget) == position);
      REQUIRE(rolling.moves_before(index, budget) == moves);
    }
  }
  CHECK(Rolling{}.position(200, 5) == 200);
  CHECK_FALSE(Rolling{}.moves_before(16, 5));
}

TEST_CASE("what rolls positions needs a model that turns keys, and a budget below the context", "[policy]") {
  const policy::ModelSpec model = rotary_model();
  const auto rolled = Retention::from_text("h2o:0.25:0.25:positions=rolled"), plain = Retention::from_text("h2o:4:4");
  CHECK(policy::rolling_of(model, rolled).context == 16);
  CHECK(policy::rolling_of(model, plain).context == 0);
  CHECK_NOTHROW(policy::check_positions(rolled, model, "retention"));
  policy::ModelSpec table = model;
  table.rotary.clear();
  table.architecture = "opt";
  CHECK_THROWS_WITH(policy::check_positions(rolled, table, "retention"),
                    Contains("retention: 'positions' is 'rolled', but opt adds learned positions"));
  CHECK_NOTHROW(policy::check_positions(plain, table, "retention"));
  policy::ModelSpec sliding = model;
  sliding.windows = {16};
  policy::ModelSpec late = model;
  late.late_head_norm = true;
  CHECK_NOTHROW(policy::check_positions(plain, late, "retention"));
  CHECK_THROWS_WITH(policy::check_positions(rolled, late, "retention"), Contains("norms keys after their rotation"));
  CHECK_NOTHROW(policy::check_positions(plain, sliding, "retention"));
  CHECK_THROWS_WITH(policy::check_positions(rolled, sliding, "retention"), Contains("sliding window"));

  CHECK_FALSE(policy::too_long(model, plain, 8, 8));
  CHECK(policy::too_long(model, plain, 8, 9) == "");
  CHECK_FALSE(policy::too_long(model, rolled, 8, 9));
  CHECK_FALSE(policy::too_long(model, rolled, 15, 16));  // keeps 14
  CHECK_THAT(policy::too_long(model, rolled, 8, 24).value(), Contains("the retention keeps 16"));
  CHECK(policy::too_long(model, rolled, 17, 1) == "");  // prompts stay within the context
}
