#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

constexpr std::string_view kCsvHead = "sweep,value,tokens_per_second,bottleneck\n",
                           kSvgMark = "<!-- weft plan, sweep -->";
constexpr double kWidth = 640, kHeight = 360, kLeft = 70, kRight = 40, kBottom = 50, kTop = 56;

Curve::Point point_of(const PlanRequest& request, double x) {
  try {
    const Planned planned = make_plan(request);
    const policy::Prediction& prediction = planned.best().prediction;
    return {x, prediction.tokens_per_second(), name_of(prediction.longer().longest())};
  } catch (const CapacityError&) {
    return {x, 0, "does not fit"};
  }
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return safe;
}

double text_width(const std::string& text) { return 7.0 * double(text.size()); }

/// Draws one plot with its axes, by hand, because two lines of points are not worth a plotting library. The highest
/// point is marked, and a label that would touch the one before it is left out.
std::string plot(const Curve& curve, double top) {
  const auto by_speed = [](const Curve::Point& a, const Curve::Point& b) {
    return a.tokens_per_second < b.tokens_per_second;
  };
  const auto best = std::max_element(curve.points.begin(), curve.points.end(), by_speed);
  const double most = best != curve.points.end() && best->tokens_per_second > 0 ? best->tokens_per_second : 1;
  const auto place = [&](double x) { return curve.doubling ? std::log2(x) : x; };
  double right = 0;
  for (const Curve::Point& point : curve.points) right = std::max(right, place(point.x));
  const double width = kWidth - kLeft - kRight, bottom = top + kHeight - kBottom;
  const auto x_of = [&](double x) { return kLeft + width * place(x) / std::max(right, 1.0); };
  const auto y_of = [&](double y) { return bottom - (kHeight - kBottom - kTop) * y / most; };
  std::string svg, line;
  double free = 0;  // where the free space under the axis begins
  for (const Curve::Point& point : curve.points) {
    const double x = x_of(point.x), y = y_of(point.tokens_per_second);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    svg +=
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{:g}: {:.2f} tokens/s, {}</title></circle>\n",
                    x, y, &point == &*best ? 5 : 3, point.x, point.tokens_per_second, point.bottleneck);
    const std::string label = fmt::format("{:g}", point.x);
    if (x - text_width(label) / 2 < free) continue;
    free = x + text_width(label) / 2 + 4;
    svg += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x, bottom + 16,
                       label);
  }
  for (const double part : {0.0, 0.5, 1.0})
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.1f}</text>\n", kLeft - 6,
                       y_of(part * most) + 4, part * most);
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"black\"/>\n", line);
  svg += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"grey\"/>\n", kLeft,
                     top + kTop, bottom, kWidth - kRight);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">tokens/s over {}</text>\n", kLeft, top + kTop - 26, curve.name);
  if (best == curve.points.end() || best->tokens_per_second <= 0) return svg;
  const std::string words = fmt::format("{:g}: {:.1f} tokens/s", best->x, best->tokens_per_second);
  const double half = text_width(words) / 2;
  svg += fmt::format("<text class=\"best\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     std::clamp(x_of(best->x), kLeft + half, kWidth - half - 4), y_of(most) - 9, words);
  return svg;
}

}  // namespace

/// Tries powers of two until nothing fits, and adds the block that the plan itself takes, which is seldom one of these.
Curve sweep_block_size(const PlanRequest& request) {
  Curve curve{.name = "block size", .points = {}, .doubling = true};
  for (int block = 1; block <= policy::kLargestBlock; block *= 2) {
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
  try {
    const Planned planned = make_plan(request);
    const Curve::Point own{double(planned.best().policy.block_size()), planned.best().prediction.tokens_per_second(),
                           name_of(planned.best().prediction.longer().longest())};
    const auto at = std::find_if(curve.points.begin(), curve.points.end(), [&](const auto& p) { return p.x >= own.x; });
    if (at != curve.points.end() && at->x == own.x) *at = own;
    else curve.points.insert(at, own);
  } catch (const CapacityError&) {  // then no point fits
  }
  return curve;
}

Curve sweep_kv_budget(const PlanRequest& request) {
  Curve curve{.name = "KV budget in percent of the context", .points = {}};
  for (const int percent : {5, 10, 20, 30, 40, 60, 80, 100}) {
    PlanRequest asked = request;
    asked.retentions.clear();
    const std::string half = fmt::format("{:g}", percent / 200.0);
    asked.policy.retention = policy::Retention::from_text("h2o:" + half + ":" + half);
    curve.points.push_back(point_of(asked, percent));
  }
  return curve;
}

bool is_sweep(std::string_view text) {
  return text.starts_with(kCsvHead) || text.find(kSvgMark) != std::string_view::npos;
}

std::string to_csv(std::span<const Curve> curves) {
  std::string text(kCsvHead);
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
      "y=\"18\">{2}</text>\n{3}\n",
      kWidth, height, escaped(title), kSvgMark);
  double top = 24;
  for (const Curve& curve : curves) {
    svg += plot(curve, top);
    top += kHeight;
  }
  return svg + "</svg>\n";
}

}  // namespace weft::runtime
