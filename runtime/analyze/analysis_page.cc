// runtime/analyze/analysis_page.cc: the figures of weft analyze as one page of HTML and SVG.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "runtime/analyze/analysis.h"
#include "runtime/analyze/attention_profile.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr int kWidth = 640, kHeight = 300, kLeft = 60, kBottom = 40, kTop = 12, kRight = 110;
constexpr std::array kColours{"#1b6ca8", "#2a9d5c", "#d98324", "#b83b5e"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

using Points = std::vector<std::pair<double, double>>;

struct Line {
  std::string name, colour, style;
  Points points;
};

/// The ends of an axis, its labels and its title.
struct Axis {
  double low = 0, high = 1;
  std::vector<std::pair<double, std::string>> ticks;
  std::string title;
};

std::string chart(const Axis& x, const Axis& y, const std::vector<Line>& lines) {
  const auto across = [&](double at) {
    return kLeft + (at - x.low) / std::max(1e-9, x.high - x.low) * (kWidth - kLeft - kRight);
  };
  const auto down = [&](double at) {
    return kHeight - kBottom - (at - y.low) / std::max(1e-9, y.high - y.low) * (kHeight - kBottom - kTop);
  };
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\">\n", kWidth,
                                kHeight, kWidth, kHeight);
  for (const auto& [at, name] : x.ticks)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", across(at),
                       kHeight - kBottom + 16, name);
  for (const auto& [at, name] : y.ticks)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, down(at), down(at), kLeft - 6, down(at) + 4, name);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 6, x.title);
  int names = 0;
  for (const Line& line : lines) {
    std::string path;
    for (const auto& [at, value] : line.points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", across(at), down(value));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" {}/>\n", path, line.colour, line.style);
    if (line.name.empty()) continue;
    const int y_of_name = kTop + 14 + 18 * names++;
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{}\" {}/><text x=\"{}\" y=\"{}\">{}</text>\n",
        kWidth - kRight + 10, kWidth - kRight + 32, y_of_name - 4, y_of_name - 4, line.colour, line.style,
        kWidth - kRight + 38, y_of_name, line.name);
  }
  return svg + "</svg>\n";
}

std::vector<std::pair<double, std::string>> numbered(std::size_t count) {
  std::vector<std::pair<double, std::string>> ticks;
  const std::size_t step = std::max<std::size_t>(1, count / 12);
  for (std::size_t i = 0; i < count; i += step) ticks.emplace_back(static_cast<double>(i), std::to_string(i));
  return ticks;
}

const std::vector<std::pair<double, std::string>> kPercents{
    {0, "0 %"}, {0.25, "25 %"}, {0.5, "50 %"}, {0.75, "75 %"}, {1, "100 %"}};

/// Draws one line for each budget over the layers.
std::string by_layer(const ordered_json& report, const char* figure) {
  const auto& layers = report.at("layers");
  std::vector<Line> lines;
  for (std::size_t i = 0; i < kShares.size(); ++i) {
    Line line{fmt::format("{:.0f} %", 100 * kShares[i]), kColours[i], "stroke-width=\"2\"", {}};
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
      line.points.emplace_back(static_cast<double>(layer), layers[layer].at(figure).at(i).get<double>());
    lines.push_back(std::move(line));
  }
  return chart({0, static_cast<double>(layers.size()) - 1, numbered(layers.size()), "layer"}, {0, 1, kPercents, ""},
               lines);
}

/// Draws accumulated scores over their ranks, both as logarithms, with a line for each layer.
std::string power_law(const ordered_json& report) {
  const auto ranks = report.at("ranks").get<std::vector<double>>();
  double lowest = 0;
  const auto line_of = [&](const ordered_json& of, std::string name, std::string colour, std::string style) {
    Line line{std::move(name), std::move(colour), std::move(style), {}};
    const auto shares = of.at("ranked").get<std::vector<double>>();
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (shares[i] > 0) {
        line.points.emplace_back(std::log10(ranks[i]), std::log10(shares[i]));
        lowest = std::min(lowest, line.points.back().second);
      }
    return line;
  };
  std::vector<Line> lines;
  const auto& layers = report.at("layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double at = layers.size() > 1 ? static_cast<double>(i) / static_cast<double>(layers.size() - 1) : 0;
    const bool named = i == 0 || i + 1 == layers.size();
    lines.push_back(line_of(layers[i], named ? "layer " + std::to_string(i) : "",
                            fmt::format("hsl({:.0f},60%,45%)", 210 - 190 * at), "stroke-width=\"1.2\""));
  }
  lines.push_back(line_of(report.at("uniform"), "even", "#444", "stroke-width=\"2\" stroke-dasharray=\"5 4\""));
  std::vector<std::pair<double, std::string>> x, y;
  for (double power = 0; power <= std::log10(ranks.back()); ++power)
    x.emplace_back(power, fmt::format("{:.0f}", std::pow(10, power)));
  for (double power = std::floor(lowest); power <= 0; ++power)
    y.emplace_back(power, fmt::format("{:g} %", 100 * std::pow(10, power)));
  return chart({0, std::log10(ranks.back()), x, "rank"}, {std::floor(lowest), 0, y, ""}, lines);
}

/// Draws a square for each layer (across) and head (down). Darker squares have more negligible weights.
std::string sparsity_map(const ordered_json& report) {
  const auto& layers = report.at("layers");
  const std::size_t heads = layers[0].at("heads").size();
  const double cell = std::clamp(560.0 / static_cast<double>(layers.size()), 4.0, 24.0);
  std::string svg = fmt::format("<svg width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\">\n",
                                60 + cell * static_cast<double>(layers.size()), 30 + cell * static_cast<double>(heads));
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    for (std::size_t head = 0; head < heads; ++head) {
      const double value = layers[layer].at("heads").at(head).at("sparsity").get<double>();
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"hsl(210,60%,{:.0f}%)\">"
          "<title>layer {}, head {}: {:.1f} %</title></rect>\n",
          50 + cell * static_cast<double>(layer), cell * static_cast<double>(head), cell - 0.5, cell - 0.5,
          95 - 70 * value, layer, head, 100 * value);
    }
  svg += fmt::format("<text x=\"0\" y=\"12\">head 0</text><text x=\"50\" y=\"{:.0f}\">layer 0 to {}</text>\n</svg>\n",
                     18 + cell * static_cast<double>(heads), layers.size() - 1);
  return svg;
}

}  // namespace

std::string analysis_page(const ordered_json& report) {
  const auto section = [](const char* title, const char* text, const std::string& picture) {
    return fmt::format("<h2>{}</h2>\n<p>{}</p>\n{}", title, text, picture);
  };
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}: attention</title>\n<style>\n"
      "body {{ font: 15px/1.5 sans-serif; max-width: 52em; margin: 2em auto; padding: 0 1em; color: #222 }}\n"
      "text {{ font: 12px sans-serif; fill: #444 }} .grid {{ stroke: #ddd }} pre {{ font-size: 11px; overflow-x: auto "
      "}}\nh2 {{ margin-top: 2em; font-size: 1.15em }}\n</style></head><body>\n<h1>Attention of {0}</h1>\n"
      "<p>{1} windows of {2} tokens; {3} queries of each window's second half; computed in {4}.</p>\n",
      escaped(report.at("model").get<std::string>()), report.at("windows").get<std::int64_t>(),
      report.at("window").get<std::int64_t>(), report.at("queries").get<std::int64_t>(),
      escaped(report.at("dtype").get<std::string>()));
  page += section("How sparse attention is",
                  "The share of the weights that are below 1 % of the largest of their row. Dark is sparse; point at a "
                  "square for its figure.",
                  sparsity_map(report));
  page += section("What the best tokens hold",
                  "The share of a query's attention on the best 50, 20, 10 and 5 % of the window's tokens, chosen anew "
                  "for each query. No cache of that size can hold more.",
                  by_layer(report, "best"));
  page += section("What the heavy hitters hold",
                  "Of the attention that a window's second half pays to its first: the share on so many of those "
                  "tokens that had been attended to most at the middle of the window.",
                  by_layer(report, "held"));
  page +=
      section("The power law of accumulated scores",
              "All attention that a token has got by the end of the window, as a share of all, over its rank. The "
              "broken line is what attention that is spread evenly gives, for early tokens are seen by more queries.",
              power_law(report));
  return page + "<h2>The figures</h2>\n<pre>" + escaped(analysis_table(report)) + "</pre>\n</body></html>\n";
}

}  // namespace weft::runtime
