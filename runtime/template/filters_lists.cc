// runtime/template/filters_lists.cc: filters over lists and dicts, and the call of any filter.
#include <algorithm>
#include <numeric>

#include "runtime/template/filters.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

PyValue lowered(const PyValue& value, bool case_sensitive) {
  return !case_sensitive && value.is(Kind::text) ? PyValue(lower(value.str())) : value;
}

/// Follows a path such as "function.name"; None leads to the value itself. An undefined step on the way becomes
/// `fallback`, if that is not null.
PyValue at_path(Evaluator& evaluator, const PyValue& value, const PyValue& path, const PyValue* fallback = nullptr) {
  if (path.is(Kind::none)) return value;
  PyValue at = value;
  std::vector<std::string> parts;
  if (path.is(Kind::text)) parts = split(path.str(), ".", -1, false);
  const std::size_t count = path.is(Kind::text) ? parts.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    evaluator.meter().charge(2);
    PyValue key = path;
    if (path.is(Kind::text)) {
      const std::string& part = parts[i];
      const bool number =
          !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
      key = number ? PyValue(std::int64_t{std::stoll(part)}) : PyValue(part);
    }
    at = evaluator.item(at, key);
    if (fallback && !at.is_defined()) at = *fallback;
  }
  return at;
}

const PyValue kNone = PyValue::none();
const PyValue& path_of(const Bound& given, std::size_t index) { return given.has(index) ? given.at(index) : kNone; }

/// The order that Python's sorted() gives the keys, as places.
std::vector<std::size_t> sorted_places(const Values& keys, bool reverse, Meter& meter) {
  std::vector<std::size_t> places(keys.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? less(keys[b], keys[a], meter) : less(keys[a], keys[b], meter);
  });
  return places;
}

PyValue sort(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const Values items = iterate(value, evaluator.meter());
  // "age,name" sorts by the one and then by the other.
  std::vector<PyValue> paths;
  const PyValue& attribute = path_of(given, 2);
  if (attribute.is(Kind::text))
    for (const std::string& each : split(attribute.str(), ",", -1, false)) paths.emplace_back(each);
  else paths.push_back(attribute);
  Values keys;
  for (const PyValue& item : items) {
    Values parts;
    for (const PyValue& path : paths) parts.push_back(lowered(at_path(evaluator, item, path), given.flag(1, false)));
    keys.push_back(make_list(std::move(parts)));
  }
  Values out;
  for (const std::size_t place : sorted_places(keys, given.flag(0, false), evaluator.meter()))
    out.push_back(items[place]);
  return make_list(std::move(out));
}

PyValue dictsort(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  if (!value.is(Kind::dict)) throw Stuck("dictsort needs a dict, got '" + type_name(value) + "'");
  const std::string by = given.has(1) ? given.text(1) : "key";
  if (by != "key" && by != "value") throw Stuck("dictsort sorts by \"key\" or \"value\"");
  const auto& items = value.dict().items;
  Values keys, out;
  for (const auto& [key, each] : items) keys.push_back(lowered(by == "key" ? key : each, given.flag(0, false)));
  for (const std::size_t place : sorted_places(keys, given.flag(2, false), evaluator.meter()))
    out.push_back(make_list({items[place].first, items[place].second}, Shape::tuple));
  return make_list(std::move(out));
}

PyValue unique(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  std::unordered_map<std::string, bool> seen;
  Values out;
  for (const PyValue& item : iterate(value, evaluator.meter())) {
    const PyValue key = lowered(at_path(evaluator, item, path_of(given, 1)), given.flag(0, false));
    if (seen.emplace(hash_text(key, evaluator.meter()), true).second) out.push_back(item);
  }
  return make_generator(std::move(out));
}

PyValue groupby(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  Meter& meter = evaluator.meter();
  const Values items = iterate(value, meter);
  const PyValue* fallback = given.has_value(1) ? &given.at(1) : nullptr;
  Values keys, names;
  for (const PyValue& item : items) {
    names.push_back(at_path(evaluator, item, given.at(0), fallback));
    keys.push_back(lowered(names.back(), given.flag(2, false)));
  }
  Values groups, group;
  const std::vector<std::size_t> places = sorted_places(keys, false, meter);
  for (std::size_t i = 0; i < places.size(); ++i) {
    group.push_back(items[places[i]]);
    if (i + 1 < places.size() && equal(keys[places[i]], keys[places[i + 1]], meter)) continue;
    groups.push_back(make_list({names[places[i + 1 - group.size()]], make_list(group)}, Shape::tuple));
    group.clear();
  }
  return make_list(std::move(groups));
}

template <bool largest> PyValue extreme(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  std::optional<PyValue> best, best_key;
  for (const PyValue& item : iterate(value, evaluator.meter())) {
    const PyValue key = lowered(at_path(evaluator, item, path_of(given, 1)), given.flag(0, false));
    if (best && !(largest ? less(*best_key, key, evaluator.meter()) : less(key, *best_key, evaluator.meter())))
      continue;
    best = item;
    best_key = key;
  }
  return best.value_or(PyValue::undefined("no aggregated item, sequence was empty"));
}

PyValue sum(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  PyValue total = given.has(1) ? given.at(1) : PyValue(std::int64_t{0});
  for (const PyValue& item : iterate(value, evaluator.meter()))
    total = binary("+", total, at_path(evaluator, item, path_of(given, 0)), evaluator.meter());
  return total;
}

PyValue join(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  Meter& meter = evaluator.meter();
  const std::string between = given.has(0) ? to_str(given.at(0), meter) : "";
  std::string out;
  bool first = true;
  for (const PyValue& item : iterate(value, meter)) {
    if (!std::exchange(first, false)) out += between;
    out += to_str(at_path(evaluator, item, path_of(given, 1)), meter);
    meter.charge_bytes(between.size());
  }
  return out;
}

PyValue first(Evaluator& evaluator, const PyValue& value, const Bound&) {
  if (value.is(Kind::generator)) {
    Generator& source = value.generator();
    return source.at < source.items.size() ? source.items[source.at++]
                                           : PyValue::undefined("no first item, sequence was empty");
  }
  const Values items = iterate(value, evaluator.meter());
  return items.empty() ? PyValue::undefined("no first item, sequence was empty") : items.front();
}

PyValue last(Evaluator& evaluator, const PyValue& value, const Bound&) {
  if (value.is(Kind::generator)) throw Stuck("'generator' object is not reversible");
  const Values items = iterate(value, evaluator.meter());
  return items.empty() ? PyValue::undefined("no last item, sequence was empty") : items.back();
}

PyValue reverse(Evaluator& evaluator, const PyValue& value, const Bound&) {
  if (value.is(Kind::text)) {
    const Values all = characters(value.text(), evaluator.meter());
    std::string out;
    for (auto each = all.rbegin(); each != all.rend(); ++each) out += each->str();
    return PyValue(std::move(out), value.text().markup);
  }
  const bool was_generator = value.is(Kind::generator);
  Values items = iterate(value, evaluator.meter());
  std::reverse(items.begin(), items.end());
  return was_generator ? make_list(std::move(items)) : make_generator(std::move(items));
}

PyValue batch(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const std::int64_t size = given.integer(0, 0);
  if (size < 1) throw Stuck("batch needs a size of 1 or more");
  const Values items = iterate(value, evaluator.meter());
  Values rows, row;
  const auto full = [&] { return static_cast<std::int64_t>(row.size()) == size; };
  for (const PyValue& item : items) {
    if (full()) rows.push_back(make_list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (given.has_value(1)) {
      evaluator.meter().charge(static_cast<std::uint64_t>(size));
      while (!full()) row.push_back(given.at(1));
    }
    rows.push_back(make_list(std::move(row)));
  }
  return make_generator(std::move(rows));
}

PyValue slices(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const std::int64_t count = given.integer(0, 0);
  if (count < 1) throw Stuck("slice needs a count of 1 or more");
  const Values items = iterate(value, evaluator.meter());
  evaluator.meter().charge(static_cast<std::uint64_t>(count));
  const auto total = static_cast<std::int64_t>(items.size()), each = total / count, more = total % count;
  Values rows;
  std::ptrdiff_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto size = static_cast<std::ptrdiff_t>(each + (i < more));
    Values row(items.begin() + at, items.begin() + at + size);
    if (given.has_value(1) && i >= more) row.push_back(given.at(1));
    rows.push_back(make_list(std::move(row)));
    at += size;
  }
  return make_generator(std::move(rows));
}

PyValue defaulted(Evaluator&, const PyValue& value, const Bound& given) {
  const bool replace = !value.is_defined() || (given.flag(1, false) && !truth(value));
  return replace ? (given.has(0) ? given.at(0) : PyValue("")) : value;
}

PyValue items_of(Evaluator& evaluator, const PyValue& value, const Bound&) {
  if (!value.is_defined()) return make_generator({});
  if (!value.is(Kind::dict)) throw Stuck("can only get item pairs from a mapping");
  return make_generator(iterate(evaluator.call(*method(value, "items"), {}), evaluator.meter()));
}

PyValue attr(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const std::string& name = given.text(0);
  const bool owns = value.is(Kind::dict) ? method(value, name).has_value() : true;
  return owns ? evaluator.attribute(value, name) : PyValue::undefined("no attribute '" + name.substr(0, 100) + "'");
}

constexpr Filter kListFilters[]{
    {"sort", "reverse? case_sensitive? attribute?", sort},
    {"dictsort", "case_sensitive? by? reverse?", dictsort},
    {"unique", "case_sensitive? attribute?", unique},
    {"groupby", "attribute default? case_sensitive?", groupby},
    {"min", "case_sensitive? attribute?", extreme<false>},
    {"max", "case_sensitive? attribute?", extreme<true>},
    {"sum", "attribute? start?", sum},
    {"join", "d? attribute?", join},
    {"first", "", first},
    {"last", "", last},
    {"reverse", "", reverse},
    {"batch", "linecount fill_with?", batch},
    {"slice", "slices fill_with?", slices},
    {"default", "default_value? boolean?", defaulted},
    {"items", "", items_of},
    {"attr", "name", attr},
    {"length", "", [](Evaluator&, const PyValue& v, const Bound&) -> PyValue { return length(v); }},
    {"list", "", [](Evaluator& e, const PyValue& v, const Bound&) { return make_list(iterate(v, e.meter())); }},
};

/// map, select, reject, selectattr and rejectattr, which take another filter's or test's arguments; nothing for
/// another name.
std::optional<PyValue> choosing_filter(Evaluator& evaluator, const std::string& name, const PyValue& value,
                                       CallArguments given) {
  const bool maps = name == "map", by_path = name == "selectattr" || name == "rejectattr",
             rejects = name.starts_with("reject");
  if (!maps && !by_path && name != "select" && name != "reject") return {};
  if (!truth(value)) return make_generator({});  // Jinja looks at nothing else then
  const Values items = iterate(value, evaluator.meter());
  Values out;
  const auto take_first = [&](const char* what) {
    if (given.positional.empty()) throw Stuck(name + " needs " + what);
    PyValue first = given.positional.front();
    given.positional.erase(given.positional.begin());
    return first;
  };
  if (maps && given.positional.empty()) {
    const PyValue* path = given.find("attribute");
    const PyValue* fallback = given.find("default");
    if (!path || given.named.size() != (fallback ? 2u : 1u)) throw Stuck("map needs a filter or an attribute");
    for (const PyValue& item : items)
      out.push_back(at_path(evaluator, item, *path, fallback && !fallback->is(Kind::none) ? fallback : nullptr));
    return make_generator(std::move(out));
  }
  const PyValue path = by_path ? take_first("an attribute") : PyValue::none();
  std::optional<std::string> word;
  if (maps || !given.positional.empty()) {
    const PyValue first = take_first("a name");
    if (!first.is(Kind::text)) throw Stuck(name + " needs the name of a " + (maps ? "filter" : "test"));
    word = first.str();
  }
  for (const PyValue& item : items) {
    evaluator.meter().charge(1);
    if (maps) {
      out.push_back(evaluator.filter(*word, item, given));
      continue;
    }
    const PyValue seen = by_path ? at_path(evaluator, item, path) : item;
    if ((word ? evaluator.test(*word, seen, given) : truth(seen)) != rejects) out.push_back(item);
  }
  return make_generator(std::move(out));
}

}  // namespace

PyValue Evaluator::filter(const std::string& name, const PyValue& value, CallArguments given) {
  if (auto chosen = choosing_filter(*this, name, value, given)) return *chosen;
  if (name == "format") {
    if (!given.named.empty()) throw Stuck("format with names is not supported");
    return formatted(to_str(value, meter_), given.positional, meter_);
  }
  const std::string known = name == "e" ? "escape" : name == "count" ? "length" : name == "d" ? "default" : name;
  for (const std::span<const Filter> filters : {text_filters(), std::span<const Filter>(kListFilters)})
    for (const Filter& each : filters)
      if (each.name == known)
        return each.body(*this, value, Bound("the filter '" + name + "'", each.parameters, std::move(given)));
  throw Stuck("there is no filter named '" + name.substr(0, 40) + "'");
}

}  // namespace weft::runtime::jinja
