// runtime/template/operators.cc: arithmetic and slices as Python has them, with whole numbers of 64 bits.
#include <algorithm>
#include <cmath>

#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

[[noreturn]] void refuse(const std::string& sign, const PyValue& a, const PyValue& b) {
  for (const PyValue* value : {&a, &b})
    if (!value->is_defined()) refuse_undefined(*value, "an undefined value is used");
  throw Stuck("unsupported operand types for " + sign + ": '" + type_name(a) + "' and '" + type_name(b) + "'");
}

[[noreturn]] void too_large() { throw Stuck("a whole number does not fit 64 bits"); }

PyValue whole_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw Stuck("0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1)
      if (__builtin_mul_overflow(result, base, &result)) too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

PyValue whole(const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (sign == "+"   ? __builtin_add_overflow(a, b, &result)
      : sign == "-" ? __builtin_sub_overflow(a, b, &result)
                    : sign == "*" && __builtin_mul_overflow(a, b, &result))
    too_large();
  if (sign == "**") return whole_power(a, b);
  if (sign != "/" && sign != "//" && sign != "%") return result;
  if (b == 0) throw Stuck("division by zero");
  if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) {
    if (a == INT64_MIN && sign == "//") too_large();
    return sign == "//" ? -a : std::int64_t{0};
  }
  const std::int64_t rest = a % b;
  const bool floored = rest != 0 && (rest < 0) != (b < 0);
  return sign == "//" ? a / b - floored : rest + (floored ? b : 0);
}

PyValue real(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") {
    if (a == 0 && b < 0) throw Stuck("0.0 cannot be raised to a negative power");
    if (a < 0 && b != std::floor(b)) throw Stuck("a root of a negative number is not supported");
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) throw Stuck("a number is too large");
    return result;
  }
  if (b == 0) throw Stuck("division by zero");
  if (sign == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = (a - rest) / b, below = std::floor(quotient);
  return quotient - below > 0.5 ? below + 1 : below;
}

PyValue joined(const PyValue& a, const PyValue& b, Meter& meter) {
  const Text &x = a.text(), &y = b.text();
  meter.charge_bytes(x.bytes.size() + y.bytes.size());
  const bool markup = x.markup || y.markup;
  const auto part = [&](const Text& text) { return markup && !text.markup ? escaped(text.bytes) : text.bytes; };
  return PyValue(part(x) + part(y), markup);
}

PyValue times(const PyValue& value, std::int64_t count, Meter& meter) {
  if (value.is(Kind::text)) return PyValue(repeated(value.str(), count, meter), value.text().markup);
  const Values& items = value.sequence().items;
  Values all;
  if (count > 0 && !items.empty()) {
    if (static_cast<std::uint64_t>(count) > (std::uint64_t{1} << 32)) throw Stuck("a list would be too long");
    meter.charge(static_cast<std::uint64_t>(count) * items.size());
    for (std::int64_t i = 0; i < count; ++i) all.insert(all.end(), items.begin(), items.end());
  }
  return make_list(std::move(all), value.sequence().shape);
}

/// Python's slice.indices(): a bound, or where it is left out.
std::int64_t bound(const PyValue& value, std::int64_t count, std::int64_t absent, std::int64_t low, std::int64_t high) {
  if (value.is(Kind::none)) return absent;
  if (!value.is_whole()) throw Stuck("slice indices must be integers or None");
  std::int64_t at = value.integer();
  if (at < 0) at = at < -count ? low : at + count;
  return std::clamp(at, low, high);
}

}  // namespace

PyValue binary(const std::string& sign, const PyValue& a, const PyValue& b, Meter& meter) {
  if (a.is_whole() && b.is_whole()) return whole(sign, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return real(sign, a.number(), b.number());
  if (sign == "+" && a.is(Kind::text) && b.is(Kind::text)) return joined(a, b, meter);
  if (sign == "+" && is_row(a) && is_row(b) && a.sequence().shape == b.sequence().shape) {
    Values all = a.sequence().items;
    all.insert(all.end(), b.sequence().items.begin(), b.sequence().items.end());
    meter.charge(all.size());
    return make_list(std::move(all), a.sequence().shape);
  }
  if (sign == "*" && (a.is(Kind::text) || is_row(a)) && b.is_whole()) return times(a, b.integer(), meter);
  if (sign == "*" && (b.is(Kind::text) || is_row(b)) && a.is_whole()) return times(b, a.integer(), meter);
  if (sign == "%" && a.is(Kind::text)) {
    const bool tuple = b.is(Kind::sequence) && b.sequence().shape == Shape::tuple;
    return formatted(a.str(), tuple ? b.sequence().items : Values{b}, meter);
  }
  refuse(sign, a, b);
}

bool compared(std::string_view sign, const PyValue& a, const PyValue& b, Meter& meter) {
  if (sign == "==") return equal(a, b, meter);
  if (sign == "!=") return !equal(a, b, meter);
  if (sign == "in") return contains(b, a, meter);
  if (sign == "not in") return !contains(b, a, meter);
  if (sign == "<") return less(a, b, meter);
  if (sign == ">") return less(b, a, meter);
  if (sign == "<=") return less(a, b, meter) || equal(a, b, meter);
  return less(b, a, meter) || equal(a, b, meter);
}

PyValue negative(const PyValue& value, bool minus) {
  if (!value.is_number()) refuse(minus ? "-" : "+", value, value);
  if (value.is(Kind::real)) return minus ? -value.number() : value.number();
  if (minus && value.integer() == INT64_MIN) too_large();
  return minus ? -value.integer() : value.integer();
}

PyValue sliced(const PyValue& value, const PyValue& start, const PyValue& stop, const PyValue& step, Meter& meter) {
  if (!value.is_defined()) refuse_undefined(value, "an undefined value has no items");
  const bool text = value.is(Kind::text);
  if (!text && !(value.is(Kind::sequence) && value.sequence().shape <= Shape::range))
    return PyValue::undefined("'" + type_name(value) + " object' cannot be sliced");
  if (!step.is(Kind::none) && !step.is_whole()) throw Stuck("slice indices must be integers or None");
  const std::int64_t count = length(value);
  const std::int64_t by = step.is(Kind::none) ? 1 : std::clamp<std::int64_t>(step.integer(), -count - 1, count + 1);
  if (by == 0) throw Stuck("slice step cannot be zero");
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? count : count - 1;
  const std::int64_t begin = bound(start, count, by > 0 ? low : high, low, high),
                     end = bound(stop, count, by > 0 ? high : low, low, high);
  if (text && by == 1) {
    meter.charge_bytes(2 * value.str().size());
    if (begin >= end) return PyValue(std::string(), value.text().markup);
    const std::size_t from = byte_of(value.text(), static_cast<std::size_t>(begin)),
                      to = byte_of(value.text(), static_cast<std::size_t>(end));
    return PyValue(value.str().substr(from, to - from), value.text().markup);
  }
  const Values items = text ? characters(value.text(), meter) : value.sequence().items;
  meter.charge(items.size());
  Values taken;
  for (std::int64_t at = begin; by > 0 ? at < end : at > end; at += by)
    taken.push_back(items[static_cast<std::size_t>(at)]);
  if (!text) {
    const Shape shape = value.sequence().shape;
    if (shape == Shape::range) throw Stuck("slices of a range are not supported; make a list of it");
    return make_list(std::move(taken), shape);
  }
  std::string out;
  for (const PyValue& character : taken) out += character.str();
  return PyValue(std::move(out), value.text().markup);
}

}  // namespace weft::runtime::jinja
