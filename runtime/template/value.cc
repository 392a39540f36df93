// runtime/template/value.cc: makes values, and compares them.
#include "runtime/template/value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policy/base/json.h"
#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

constexpr int kDeepestValue = 100;  // lists within lists
constexpr std::size_t kLongestText = std::size_t{64} << 20;

struct Hint {
  std::string what;
};

}  // namespace

int depth_of(const PyValue& value) {
  if (value.is(Kind::sequence)) return value.sequence().depth;
  if (value.is(Kind::dict)) return value.dict().depth;
  if (value.is(Kind::callable)) return value.callable().depth;
  return value.is(Kind::generator) ? value.generator().depth : 0;
}

int deeper(int depth) {
  if (depth >= kDeepestValue) throw Stuck("values are nested more than " + std::to_string(kDeepestValue) + " deep");
  return depth + 1;
}

namespace {

/// Compares whole numbers exactly, and others as floating point.
int order(const PyValue& a, const PyValue& b) {
  if (a.is_whole() && b.is_whole()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : a.number() == b.number() ? 0 : 2;
}

bool same_shape(Shape a, Shape b) { return a == b || (a == Shape::keys && b == Shape::items); }

}  // namespace

void Meter::charge(std::uint64_t units) {
  if (units > left_) {
    left_ = 0;
    throw Stuck("the template takes too many steps or too much memory");
  }
  left_ -= units;
}

PyValue::PyValue(std::string text, bool markup) : kind_(Kind::text) {
  if (text.size() > kLongestText)
    throw Stuck("a text has " + std::to_string(text.size()) + " bytes, at most " + std::to_string(kLongestText));
  const bool ascii = is_ascii(text);
  object_ = std::make_shared<const Text>(Text{std::move(text), markup, ascii});
}

PyValue PyValue::none() {
  PyValue value;
  value.kind_ = Kind::none;
  return value;
}

PyValue PyValue::undefined(const std::string& what) {
  PyValue value;
  value.object_ = std::make_shared<const Hint>(Hint{what});
  return value;
}

const Text& PyValue::text() const { return *static_cast<const Text*>(object_.get()); }
const std::string& PyValue::str() const {
  static const std::string nothing;
  if (kind_ == Kind::undefined) return object_ ? static_cast<const Hint*>(object_.get())->what : nothing;
  return text().bytes;
}
const PyRow& PyValue::sequence() const { return *static_cast<const PyRow*>(object_.get()); }
const Dict& PyValue::dict() const { return *static_cast<const Dict*>(object_.get()); }
// These were made as objects that are not const.
Generator& PyValue::generator() const { return *static_cast<Generator*>(const_cast<void*>(object_.get())); }
Namespace& PyValue::names() const { return *static_cast<Namespace*>(const_cast<void*>(object_.get())); }
Callable& PyValue::callable() const { return *static_cast<Callable*>(const_cast<void*>(object_.get())); }

const PyValue* Dict::find(const std::string& text) const {
  const auto found = places.find("s" + text);
  return found == places.end() ? nullptr : &items[found->second].second;
}

const PyValue* Dict::find(const PyValue& key, Meter& meter) const {
  const auto found = places.find(hash_text(key, meter));
  return found == places.end() ? nullptr : &items[found->second].second;
}

PyValue* Namespace::find(std::string_view name) {
  for (auto& [key, value] : items)
    if (key == name) return &value;
  return nullptr;
}

PyValue make_list(Values items, Shape shape) {
  int depth = 0;
  for (const PyValue& item : items) depth = std::max(depth, depth_of(item));
  PyRow made;
  made.shape = shape;
  made.items = std::move(items);
  made.depth = deeper(depth);
  return std::make_shared<const PyRow>(std::move(made));
}

PyValue make_dict(std::vector<Item> items, Meter& meter) {
  auto made = std::make_shared<Dict>();
  int depth = 0;
  for (auto& [key, value] : items) {
    meter.charge(1);
    depth = std::max({depth, depth_of(key), depth_of(value)});
    const auto [place, is_new] = made->places.emplace(hash_text(key, meter), made->items.size());
    if (is_new) made->items.emplace_back(std::move(key), std::move(value));
    else made->items[place->second].second = std::move(value);
  }
  made->depth = deeper(depth);
  return std::shared_ptr<const Dict>(std::move(made));
}

PyValue make_generator(Values items) {
  int depth = 0;
  for (const PyValue& item : items) depth = std::max(depth, depth_of(item));
  return std::make_shared<Generator>(Generator{std::move(items), 0, deeper(depth)});
}

PyValue from_json(const nlohmann::ordered_json& json) {
  if (json.is_null()) return PyValue::none();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX)
    throw Stuck("the number " + policy::to_line(json) + " does not fit 64 bits with a sign");
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Values items;
    for (const auto& item : json) items.push_back(from_json(item));
    return make_list(std::move(items));
  }
  std::vector<Item> items;
  for (const auto& item : json.items()) items.emplace_back(PyValue(item.key()), from_json(item.value()));
  Meter unlimited(UINT64_MAX);
  return make_dict(std::move(items), unlimited);
}

std::string type_name(const PyValue& value) {
  switch (value.kind()) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::text: return "str";
    case Kind::dict: return "dict";
    case Kind::generator: return "generator";
    case Kind::names: return "Namespace";
    case Kind::callable: return "function";
    case Kind::sequence: break;
  }
  constexpr const char* names[]{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
  return names[static_cast<int>(value.sequence().shape)];
}

void refuse_undefined(const PyValue& value, const std::string& fallback) {
  throw Stuck(value.str().empty() ? fallback : value.str());
}

bool is_row(const PyValue& value) {
  return value.is(Kind::sequence) && (value.sequence().shape == Shape::list || value.sequence().shape == Shape::tuple);
}

bool truth(const PyValue& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return value.integer() != 0;
    case Kind::real: return value.number() != 0;
    case Kind::text: return !value.str().empty();
    case Kind::sequence: return !value.sequence().items.empty();
    case Kind::dict: return !value.dict().items.empty();
    case Kind::generator:
    case Kind::names:
    case Kind::callable: break;
  }
  return true;
}

bool equal(const PyValue& a, const PyValue& b, Meter& meter) {
  meter.charge(1);
  if (a.is_number() && b.is_number()) return order(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::text: meter.charge_bytes(std::min(a.str().size(), b.str().size())); return a.str() == b.str();
    case Kind::sequence: {
      const PyRow &x = a.sequence(), &y = b.sequence();
      return same_shape(x.shape, y.shape) &&
             std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(),
                        [&](const PyValue& one, const PyValue& other) { return equal(one, other, meter); });
    }
    case Kind::dict: {
      if (a.dict().items.size() != b.dict().items.size()) return false;
      return std::all_of(a.dict().items.begin(), a.dict().items.end(), [&](const Item& item) {
        const PyValue* other = b.dict().find(item.first, meter);
        return other && equal(item.second, *other, meter);
      });
    }
    case Kind::undefined:
    case Kind::none: return true;
    default: return a.same_object(b);
  }
}

bool less(const PyValue& a, const PyValue& b, Meter& meter) {
  meter.charge(1);
  if (a.is_number() && b.is_number()) return order(a, b) == -1;
  if (a.is(Kind::text) && b.is(Kind::text)) {
    meter.charge_bytes(std::min(a.str().size(), b.str().size()));
    return a.str() < b.str();  // bytes of UTF-8 are in the order of their characters
  }
  if (is_row(a) && is_row(b) && a.sequence().shape == b.sequence().shape) {
    const Values &x = a.sequence().items, &y = b.sequence().items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i], meter)) return less(x[i], y[i], meter);
    return x.size() < y.size();
  }
  throw Stuck("'" + type_name(a) + "' and '" + type_name(b) + "' have no order");
}

std::string hash_text(const PyValue& value, Meter& meter) {
  meter.charge(1);
  switch (value.kind()) {
    case Kind::text: meter.charge_bytes(value.str().size()); return "s" + value.str();
    case Kind::none: return "n";
    case Kind::undefined: return "u";
    case Kind::boolean:
    case Kind::integer: return "i" + std::to_string(value.integer());
    case Kind::real: {
      const double number = value.number();
      const bool whole = std::abs(number) < 9e18 && number == std::floor(number);
      return whole ? "i" + std::to_string(static_cast<std::int64_t>(number)) : "f" + float_text(number);
    }
    case Kind::sequence:
      if (value.sequence().shape == Shape::tuple) {
        std::string text = "t";
        for (const PyValue& item : value.sequence().items) {
          const std::string part = hash_text(item, meter);
          meter.charge_bytes(part.size());
          text += std::to_string(part.size()) + ":" + part;
        }
        return text;
      }
      [[fallthrough]];
    case Kind::dict: throw Stuck("unhashable type: '" + type_name(value) + "'");
    default: return "o" + std::to_string(reinterpret_cast<std::uintptr_t>(value.address()));
  }
}

Values iterate(const PyValue& value, Meter& meter) {
  Values items;
  switch (value.kind()) {
    case Kind::undefined: break;
    case Kind::text: items = characters(value.text(), meter); break;
    case Kind::sequence: items = value.sequence().items; break;
    case Kind::dict:
      for (const Item& item : value.dict().items) items.push_back(item.first);
      break;
    case Kind::generator: {
      Generator& source = value.generator();
      items.assign(source.items.begin() + static_cast<std::ptrdiff_t>(source.at), source.items.end());
      source.at = source.items.size();
      break;
    }
    default: throw Stuck("'" + type_name(value) + "' object is not iterable");
  }
  meter.charge(1 + items.size());
  return items;
}

bool contains(const PyValue& container, const PyValue& value, Meter& meter) {
  if (container.is(Kind::text)) {
    if (!value.is(Kind::text)) throw Stuck("'in' of a str needs a str, not '" + type_name(value) + "'");
    meter.charge_bytes(container.str().size() + value.str().size());
    return find_bytes(container.str(), value.str(), 0) != std::string::npos;
  }
  if (container.is(Kind::dict)) return container.dict().find(value, meter) != nullptr;
  const Values items = iterate(container, meter);
  return std::any_of(items.begin(), items.end(), [&](const PyValue& item) {
    return (item.same_object(value) && item.is(Kind::text)) || equal(item, value, meter);
  });
}

std::int64_t length(const PyValue& value) {
  switch (value.kind()) {
    case Kind::undefined: return 0;
    case Kind::text: return static_cast<std::int64_t>(character_count(value.text()));
    case Kind::sequence: return static_cast<std::int64_t>(value.sequence().items.size());
    case Kind::dict: return static_cast<std::int64_t>(value.dict().items.size());
    default: throw Stuck("object of type '" + type_name(value) + "' has no len()");
  }
}

}  // namespace weft::runtime::jinja
