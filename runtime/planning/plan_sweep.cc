#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/error.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

constexpr double kWidth = 640, kHeight = 360, kLeft = 70, kBottom = 50, kTop = 40;

Curve::Point point_of(const PlanRequest& request, double x) {
  try {
    const Planned planned = make_plan(request);
    const policy::Prediction& prediction = planned.best().prediction;
    return {x, prediction.tokens_per_second(), name_of(prediction.longer().longest())};
  } catch (const CapacityError&) {
    return {x, 0, "does not fit"};
  }
}

/// One plot with its axes, by hand: two lines of points are not worth a plotting library.
std::string plot(const Curve& curve, double top) {
  double most = 0, right = 0;
  for (const Curve::Point& point : curve.points)
    most = std::max(most, point.tokens_per_second), right = std::max(right, point.x);
  if (most <= 0) most = 1;
  const auto x_of = [&](double x) { return kLeft + (kWidth - kLeft - 20) * x / right; };
  const auto y_of = [&](double y) { return top + kHeight - kBottom - (kHeight - kBottom - kTop) * y / most; };
  std::string svg, line;
  for (const Curve::Point& point : curve.points) {
    const double x = x_of(point.x), y = y_of(point.tokens_per_second);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    svg +=
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{:g}: {:.2f} tokens/s, {}</title></circle>\n",
                    x, y, point.x, point.tokens_per_second, point.bottleneck);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>\n", x,
                       top + kHeight - kBottom + 16, point.x);
  }
  for (const double part : {0.0, 0.5, 1.0})
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.1f}</text>\n", kLeft - 6,
                       y_of(part * most) + 4, part * most);
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"black\"/>\n", line);
  svg += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"grey\"/>\n", kLeft,
                     top + kTop, top + kHeight - kBottom, kWidth - 20);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">tokens/s over {}</text>\n", kLeft, top + kTop - 14, curve.name);
  return svg;
}

}  // namespace

Curve sweep_block_size(const PlanRequest& request) {
  Curve curve{"block size", {}};
  for (int block = 1; block <= policy::kMostSequences / 2; block *= 2) {
    Curve::Point best{double(block), 0, "does not fit"};
    for (const int batches : {1, 4, 16}) {
      if (block % batches != 0) continue;
      PlanRequest asked = request;
      asked.policy.gpu_batch_size = block / batches;
      asked.policy.num_gpu_batches = batches;
      if (const Curve::Point point = point_of(asked, block); point.tokens_per_second > best.tokens_per_second)
        best = point;
    }
    if (best.tokens_per_second == 0 && block > 1) break;
    curve.points.push_back(best);
  }
  return curve;
}

Curve sweep_kv_budget(const PlanRequest& request) {
  Curve curve{"KV budget in percent of the context", {}};
  for (const int percent : {5, 10, 20, 30, 40, 60, 80, 100}) {
    PlanRequest asked = request;
    asked.retentions.clear();
    const std::string half = fmt::format("{:g}", percent / 200.0);
    asked.policy.retention = policy::Retention::from_text("h2o:" + half + ":" + half);
    curve.points.push_back(point_of(asked, percent));
  }
  return curve;
}

std::string to_csv(std::span<const Curve> curves) {
  std::string text = "sweep,value,tokens_per_second,bottleneck\n";
  for (const Curve& curve : curves)
    for (const Curve::Point& point : curve.points)
      text += fmt::format("{},{:g},{:.4f},{}\n", curve.name, point.x, point.tokens_per_second, point.bottleneck);
  return text;
}

std::string to_svg(std::span<const Curve> curves, const std::string& title) {
  const double height = 24 + kHeight * double(curves.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n<text x=\"10\" "
      "y=\"18\">{2}</text>\n",
      kWidth, height, title);
  double top = 24;
  for (const Curve& curve : curves) {
    svg += plot(curve, top);
    top += kHeight;
  }
  return svg + "</svg>\n";
}

}  // namespace weft::runtime
