// runtime/checkpoint/pickle.cc: reads the 31 opcodes and 13 names of PyTorch's state_dicts and refuses everything else.
#include "runtime/checkpoint/pickle.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/quote.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint_error.h"

namespace weft::runtime {

namespace {

using Kind = PickleValue::Kind;
using Handle = std::uint32_t;

constexpr std::size_t kMostValues = 4'000'000, kMostItems = 8'000'000, kMostStack = 1'000'000, kMostMemo = 4'000'000;
constexpr std::size_t kMostMarks = 64, kMostLineBytes = 256, kMostTextBytes = 64 << 10, kMostKeyDigits = 20;
constexpr std::size_t kMostDimensions = 8;  // a long tuple that many tensors name would take for ever
constexpr Handle kUnset = ~Handle{0};
enum Function : std::uint8_t { kOrderedDict, kRebuildTensor, kRebuildParameter };

constexpr const char* kSaveAnew = "; save a plain state_dict, or convert it to safetensors";

/// Describes the contents of a file that names `name` of `module`.
std::string contents_behind(std::string_view module, std::string_view name) {
  const auto begins = [](std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; };
  if (name == "_rebuild_tensor_v3" || name == "UntypedStorage") return "tensors of a newer dtype such as float8";
  if (name == "_rebuild_qtensor" || begins(name, "QInt") || begins(name, "QUInt")) return "quantised tensors";
  if (begins(name, "_rebuild_sparse")) return "sparse tensors";
  if (begins(name, "Complex")) return "complex numbers";
  if (begins(module, "numpy")) return "NumPy arrays";
  if (begins(module, "transformers")) return "a training state";
  return "more than tensors";
}

class PickleReader {
 public:
  explicit PickleReader(const PickleSource& source) : source_(source), text_(source.text), at_(source.begin) {}

  Pickle read() {
    if (text_.size() - at_ < 2 || text_[at_] != '\x80') fail(Fault::bad_pickle, "it does not begin with its protocol");
    if (text_[at_ + 1] != 2)
      fail(Fault::bad_pickle, "protocol " + std::to_string(int(static_cast<unsigned char>(text_[at_ + 1]))) +
                                  " is not read, wanted 2" + kSaveAnew);
    at_ += 2;
    for (;;) {
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      if (!constant(opcode) && !structure(opcode) && !memo(opcode)) refuse(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail(Fault::bad_pickle, "it ends with other than one value");
    if (!source_.legacy && at_ != text_.size())
      fail(Fault::bad_pickle, std::to_string(text_.size() - at_) + " bytes follow its end");
    pickle_.root = stack_[0];
    pickle_.end = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(Fault fault, const std::string& what) const {
    throw CheckpointError(fault, source_.where + " byte " + std::to_string(opcode_at_ - source_.begin) + ": " + what);
  }
  [[noreturn]] void refuse(unsigned char opcode) const {
    constexpr const char* kDigits = "0123456789ABCDEF";
    fail(Fault::refused_opcode, std::string("opcode 0x") + kDigits[opcode >> 4] + kDigits[opcode & 15] +
                                    " is none that a state_dict needs" + kSaveAnew);
  }
  void demand(bool good, const char* what) const {
    if (!good) fail(Fault::bad_pickle, what);
  }

  std::string_view take(std::size_t bytes) {
    if (bytes > text_.size() - at_)
      fail(Fault::bad_pickle, "it ends " + std::to_string(bytes - (text_.size() - at_)) + " bytes early");
    at_ += bytes;
    return text_.substr(at_ - bytes, bytes);
  }
  /// Takes a little-endian number of at most 8 bytes.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }
  std::string_view line() {
    const std::string_view rest = text_.substr(at_, kMostLineBytes + 1);
    const std::size_t end = rest.find('\n');
    demand(end != rest.npos, "a name is over 256 bytes or does not end");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  PickleValue& value(Handle handle) { return pickle_.values[handle]; }
  bool is(Handle handle, Kind kind) { return value(handle).kind == kind; }
  bool is_empty(Handle handle, Kind kind) { return is(handle, kind) && value(handle).items.empty(); }

  void push(Handle handle) {
    demand(stack_.size() < kMostStack, "over 1,000,000 values are on the stack");
    stack_.push_back(handle);
  }
  void push(PickleValue made) {
    demand(pickle_.values.size() < kMostValues, "there are over 4,000,000 values");
    pickle_.values.push_back(std::move(made));
    push(static_cast<Handle>(pickle_.values.size() - 1));
  }
  void push(Kind kind, std::int64_t integer = 0) {
    PickleValue made;
    made.kind = kind;
    made.integer = integer;
    push(std::move(made));
  }
  Handle top() const {
    demand(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "the stack is empty");
    return stack_.back();
  }
  Handle pop() {
    const Handle handle = top();
    stack_.pop_back();
    return handle;
  }
  std::vector<Handle> pop_marked() {
    demand(!marks_.empty(), "there is no mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Handle> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void append(Handle to, const std::vector<Handle>& items) {
    demand(items.size() <= kMostItems - items_, "there are over 8,000,000 items");
    items_ += items.size();
    value(to).items.insert(value(to).items.end(), items.begin(), items.end());
  }
  void push_tuple(const std::vector<Handle>& items) {
    push(Kind::tuple);
    append(stack_.back(), items);
  }

  bool constant(unsigned char opcode) {
    switch (opcode) {
      case 'N': push(Kind::none); return true;
      case 0x88: push(Kind::boolean, 1); return true;
      case 0x89: push(Kind::boolean, 0); return true;
      case 'K': push(Kind::integer, static_cast<std::int64_t>(number(1))); return true;
      case 'M': push(Kind::integer, static_cast<std::int64_t>(number(2))); return true;
      case 'J': push(Kind::integer, static_cast<std::int32_t>(number(4))); return true;
      case 0x8A: push(Kind::integer, long_integer()); return true;
      case 'G': take(8), push(Kind::floating); return true;
      case 'X': push_text(); return true;
      case 'c': push_global(); return true;
      default: return false;
    }
  }
  std::int64_t long_integer() {
    const auto bytes = static_cast<std::size_t>(number(1));
    if (bytes > 8) fail(Fault::bad_pickle, "an integer has " + std::to_string(bytes) + " bytes, wanted 8 at most");
    if (bytes == 0) return 0;
    const std::uint64_t low = number(bytes);
    const unsigned unused = static_cast<unsigned>(64 - 8 * bytes);
    return static_cast<std::int64_t>(low << unused) >> unused;
  }
  void push_text() {
    const auto bytes = static_cast<std::size_t>(number(4));
    if (bytes > kMostTextBytes)
      fail(Fault::bad_pickle, "a string of " + std::to_string(bytes) + " bytes is over 64 KiB");
    PickleValue made;
    made.kind = Kind::text;
    made.text = take(bytes);
    demand(is_utf8(made.text), "a string is no UTF-8");
    push(std::move(made));
  }
  void push_global() {
    const std::string_view module = line(), name = line();
    PickleValue made;
    made.kind = Kind::function;
    const auto known = std::find_if(std::begin(kStorageTypes), std::end(kStorageTypes),
                                    [&](const StorageType& type) { return name == type.name; });
    if (module == "collections" && name == "OrderedDict") made.type = kOrderedDict;
    else if (module == "torch._utils" && name == "_rebuild_tensor_v2") made.type = kRebuildTensor;
    else if (module == "torch._utils" && name == "_rebuild_parameter") made.type = kRebuildParameter;
    else if (module == "torch" && known != std::end(kStorageTypes)) {
      made.kind = Kind::storage_type;
      made.type = static_cast<std::uint8_t>(known - std::begin(kStorageTypes));
    } else {
      fail(Fault::refused_global, in_quotes(std::string(module) + " " + std::string(name)) +
                                      " is refused and never run; this file holds " + contents_behind(module, name) +
                                      kSaveAnew);
    }
    push(std::move(made));
  }

  bool structure(unsigned char opcode) {
    switch (opcode) {
      case '(':
        demand(marks_.size() < kMostMarks, "over 64 marks are open");
        marks_.push_back(stack_.size());
        return true;
      case ')': push(Kind::tuple); return true;
      case '}': push(Kind::dict); return true;
      case ']': push(Kind::list); return true;
      case 't': push_tuple(pop_marked()); return true;
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<Handle> items(opcode - std::size_t{0x84});
        for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
        push_tuple(items);
        return true;
      }
      case 's': {
        const Handle item = pop(), key = pop();
        set_items({key, item});
        return true;
      }
      case 'u': set_items(pop_marked()); return true;
      case 'a': append_items({pop()}); return true;
      case 'e': append_items(pop_marked()); return true;
      case 'b': {  // attributes of an OrderedDict; those of state_dicts have _metadata
        const Handle state = pop();
        demand(is(top(), Kind::ordered_dict) && is(state, Kind::dict), "attributes are set of no OrderedDict");
        return true;
      }
      case 'Q': push_storage(); return true;
      case 'R': call(); return true;
      default: return false;
    }
  }
  void set_items(const std::vector<Handle>& items) {
    demand(is(top(), Kind::dict) || is(top(), Kind::ordered_dict), "items are set of no dict");
    demand(items.size() % 2 == 0, "a key has no value");
    for (std::size_t i = 0; i < items.size(); i += 2)
      demand(is(items[i], Kind::text) || is(items[i], Kind::integer), "a key is neither a string nor an integer");
    append(top(), items);
  }
  void append_items(const std::vector<Handle>& items) {
    demand(is(top(), Kind::list), "items are appended to no list");
    append(top(), items);
  }

  bool memo(unsigned char opcode) {
    switch (opcode) {
      case 'q': put(number(1)); return true;
      case 'r': put(number(4)); return true;
      case 'h': get(number(1)); return true;
      case 'j': get(number(4)); return true;
      default: return false;
    }
  }
  void put(std::uint64_t index) {
    if (index >= kMostMemo) fail(Fault::bad_pickle, "memo " + std::to_string(index) + " is over 4,000,000");
    if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, kUnset);
    memo_[static_cast<std::size_t>(index)] = top();
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == kUnset)
      fail(Fault::bad_pickle, "memo " + std::to_string(index) + " was never set");
    push(memo_[static_cast<std::size_t>(index)]);
  }

  /// The id is a tuple ("storage", type, key, location, elements), with None as a sixth element in a legacy file.
  void push_storage() {
    const Handle id = pop();
    demand(is(id, Kind::tuple), "a persistent id is no tuple");
    const std::vector<Handle> items = value(id).items;
    demand(items.size() == (source_.legacy ? 6 : 5), "a persistent id has another number of elements");
    demand(is(items[0], Kind::text) && value(items[0]).text == "storage", "a persistent id is not of a storage");
    demand(is(items[1], Kind::storage_type), "a storage has no storage type");
    demand(is(items[2], Kind::text), "a storage's key is no string");
    const std::string_view key = value(items[2]).text;
    const bool digits = std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || key.empty() || key.size() > kMostKeyDigits)
      fail(Fault::bad_storage, "the storage key " + in_quotes(key) + " is not 1 to 20 digits");
    demand(is(items[3], Kind::text), "a storage's location is no string");
    demand(is(items[4], Kind::integer), "a storage's number of elements is no integer");
    if (value(items[4]).integer < 0) fail(Fault::bad_storage, "a storage has a negative number of elements");
    demand(!source_.legacy || is(items[5], Kind::none), "a storage is a view of another, which is not read");
    PickleValue made;
    made.kind = Kind::storage;
    made.type = value(items[1]).type;
    made.integer = value(items[4]).integer;
    made.text = key;
    push(std::move(made));
  }

  void call() {
    const Handle arguments = pop(), callee = pop();
    demand(is(callee, Kind::function), "what is called is no function");
    demand(is(arguments, Kind::tuple), "a function's arguments are no tuple");
    const std::vector<Handle> items = value(arguments).items;
    switch (value(callee).type) {
      case kOrderedDict:
        demand(items.empty(), "an OrderedDict is made from arguments");
        push(Kind::ordered_dict);
        return;
      case kRebuildTensor: push_tensor(items); return;
      default:
        demand(items.size() == 3 && is(items[0], Kind::tensor) && is(items[1], Kind::boolean) &&
                   is_empty(items[2], Kind::ordered_dict),
               "a parameter is made of other than a tensor, a bool and no hooks");
        push(items[0]);
    }
  }
  void push_tensor(const std::vector<Handle>& items) {
    demand(items.size() == 6 || items.size() == 7, "a tensor is made of other than 6 or 7 arguments");
    demand(is(items[0], Kind::storage), "a tensor has no storage");
    demand(is(items[1], Kind::integer), "a tensor's offset is no integer");
    for (const std::size_t i : {2, 3}) {
      demand(is(items[i], Kind::tuple), "a tensor's size or stride is no tuple");
      if (value(items[i]).items.size() > kMostDimensions)
        fail(Fault::bad_shape, "a tensor has more than 8 dimensions or strides");
      for (const Handle item : value(items[i]).items)
        demand(is(item, Kind::integer), "a tensor's size or stride is not of integers");
    }
    demand(is(items[4], Kind::boolean), "a tensor's requires_grad is no bool");
    demand(is_empty(items[5], Kind::ordered_dict), "a tensor has hooks");
    demand(items.size() == 6 || is(items[6], Kind::none) || is_empty(items[6], Kind::dict),
           "a tensor has metadata, such as conjugation");
    push(Kind::tensor, value(items[1]).integer);
    append(stack_.back(), {items[0], items[2], items[3]});
  }

  const PickleSource& source_;
  std::string_view text_;
  std::size_t at_, opcode_at_ = 0, items_ = 0;
  Pickle pickle_;
  std::vector<Handle> stack_, memo_;
  std::vector<std::size_t> marks_;
};

}  // namespace

Pickle read_pickle(const PickleSource& source) { return PickleReader(source).read(); }

}  // namespace weft::runtime
