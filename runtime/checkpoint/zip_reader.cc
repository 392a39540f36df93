// runtime/checkpoint/zip_reader.cc: reads the end record, the central directory and the local headers, and compares
// them.
#include "runtime/checkpoint/zip_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "runtime/base/quote.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/checkpoint_error.h"

namespace weft::runtime {

namespace {

constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr std::uint64_t kMostEntries = 1'000'000, kMostDirectoryBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMostEntryNameBytes = 1024;
constexpr std::uint32_t kAllOnes = 0xFFFFFFFF, kCentralMagic = 0x02014B50, kEndMagic = 0x06054B50;
constexpr std::uint32_t kLocalMagic = 0x04034B50, kEnd64Magic = 0x06064B50, kLocatorMagic = 0x07064B50;
constexpr unsigned kSizesFollow = 8, kUtf8Names = 0x800, kZip64Extra = 1;

std::uint64_t number(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}
unsigned u16(std::string_view bytes, std::size_t at) { return static_cast<unsigned>(number(bytes, at, 2)); }
std::uint32_t u32(std::string_view bytes, std::size_t at) { return static_cast<std::uint32_t>(number(bytes, at, 4)); }
std::uint64_t u64(std::string_view bytes, std::size_t at) { return number(bytes, at, 8); }

/// The caller has compared `bytes` with the file's size.
std::string read_text_at(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

struct Directory {
  std::uint64_t entries, offset, bytes;
};

/// An entry as its central header describes it.
struct Entry {
  std::string name;
  unsigned flags;
  std::uint32_t crc;
  std::uint64_t bytes, header;
  std::uint64_t offset = 0;  // offset of its data, known once the local header is read
};

class ZipReader {
 public:
  explicit ZipReader(const InputFile& file) : file_(file), where_(file.path().string()) {}

  std::vector<ZipRecord> read() {
    const Directory directory = find_directory();
    read_entries(directory);
    for (Entry& entry : entries_) read_local(entry, directory.offset);
    check_layout();
    std::vector<ZipRecord> records;
    for (Entry& entry : entries_)
      records.push_back({entry.name.substr(folder_.size()), entry.offset, entry.bytes, entry.crc});
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(records.begin(), records.end(),
                                          [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twice != records.end()) fail(in_quotes(twice->name) + " appears twice");
    return records;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(Fault::bad_zip, where_ + ": zip archive: " + what +
                                              "; the file is cut off, damaged or not as torch.save() writes it: "
                                              "download it again, or save it anew");
  }

  Directory find_directory() const {
    const std::uint64_t size = file_.size();
    if (size < kEndBytes) fail("the file has only " + std::to_string(size) + " bytes");
    if (u32(read_text_at(file_, 0, 4), 0) != kLocalMagic) fail("no entry begins at byte 0");
    const std::string end = read_text_at(file_, size - kEndBytes, kEndBytes);
    if (u32(end, 0) != kEndMagic || u16(end, 20) != 0) fail("there is no end record in the last 22 bytes");
    if (u16(end, 4) != 0 || u16(end, 6) != 0) fail("it is spread over several disks");
    if (u16(end, 8) != u16(end, 10)) fail("the end record's two counts differ");
    Directory directory{u16(end, 10), u32(end, 16), u32(end, 12)};
    std::uint64_t records_begin = size - kEndBytes;
    const bool far = size >= kEndBytes + kLocatorBytes &&
                     u32(read_text_at(file_, size - kEndBytes - kLocatorBytes, 4), 0) == kLocatorMagic;
    if (far) {
      records_begin = read_far_directory(directory);
    } else if (directory.entries == 0xFFFF || directory.offset == kAllOnes || directory.bytes == kAllOnes) {
      fail("the zip64 end record is missing");
    }
    if (directory.bytes > records_begin || directory.offset != records_begin - directory.bytes)
      fail("the directory of " + std::to_string(directory.bytes) + " bytes at byte " +
           std::to_string(directory.offset) + " does not end where the end record begins");
    if (directory.entries < 1 || directory.entries > kMostEntries || directory.entries > size / kCentralBytes)
      fail("a directory of " + std::to_string(directory.entries) + " entries is not possible");
    if (directory.bytes > kMostDirectoryBytes) fail("the directory is over 256 MiB");
    return directory;
  }

  /// Takes the numbers of the zip64 end record and returns the offset at which it begins.
  std::uint64_t read_far_directory(Directory& directory) const {
    const std::uint64_t size = file_.size(), tail = kEnd64Bytes + kLocatorBytes + kEndBytes;
    if (size < tail) fail("the zip64 end record is missing");
    const std::string text = read_text_at(file_, size - tail, kEnd64Bytes + kLocatorBytes);
    const std::string_view end = std::string_view(text).substr(0, kEnd64Bytes),
                           locator = std::string_view(text).substr(kEnd64Bytes);
    if (u64(locator, 8) != size - tail || u32(locator, 4) != 0 || u32(locator, 16) != 1)
      fail("the zip64 locator does not point to the zip64 end record");
    if (u32(end, 0) != kEnd64Magic || u64(end, 4) != kEnd64Bytes - 12 || u32(end, 16) != 0 || u32(end, 20) != 0)
      fail("the zip64 end record is malformed");
    const Directory far{u64(end, 32), u64(end, 48), u64(end, 40)};
    const auto agree = [](std::uint64_t near, std::uint64_t ones, std::uint64_t value) {
      return near == ones || near == value;
    };
    if (u64(end, 24) != far.entries || !agree(directory.entries, 0xFFFF, far.entries) ||
        !agree(directory.offset, kAllOnes, far.offset) || !agree(directory.bytes, kAllOnes, far.bytes))
      fail("the two end records differ");
    directory = far;
    return size - tail;
  }

  void read_entries(const Directory& directory) {
    const std::string text = read_text_at(file_, directory.offset, directory.bytes);
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < directory.entries; ++i) {
      const std::string which = "entry " + std::to_string(i);
      if (text.size() - at < kCentralBytes || u32(text, at) != kCentralMagic)
        fail(which + " is not in the directory, which should have " + std::to_string(directory.entries));
      const std::string_view header = std::string_view(text).substr(at);
      const std::size_t name = u16(header, 28), extra = u16(header, 30);
      if (u16(header, 32) != 0) fail(which + " has a comment");
      if (header.size() - kCentralBytes < name + extra) fail(which + " is cut off");
      Entry entry{std::string(header.substr(kCentralBytes, name)), u16(header, 8), u32(header, 16), u32(header, 24),
                  u32(header, 42)};
      check_name(entry.name);
      const std::string what = in_quotes(entry.name);
      if (entry.flags & ~(kSizesFollow | kUtf8Names)) fail(what + " is encrypted or has other flags");
      if (u16(header, 10) != 0) fail(what + " is compressed, wanted stored");
      std::uint64_t packed = u32(header, 20);
      bool whole = true;
      take_far(header.substr(kCentralBytes + name, extra), {&entry.bytes, &packed, &entry.header}, whole);
      if (u16(header, 34) != 0) fail(what + " is on another disk");
      if (!whole) fail(what + " has a zip64 field that is too short");
      if (packed != entry.bytes)
        fail(what + " has " + std::to_string(packed) + " bytes stored, " + std::to_string(entry.bytes) + " unpacked");
      entries_.push_back(std::move(entry));
      at += kCentralBytes + name + extra;
    }
    if (at != text.size()) fail("the directory has more than its " + std::to_string(directory.entries) + " entries");
  }

  /// Replaces each value that is all ones by the next number of the zip64 field. Sets `whole` to false if the field has
  /// too few.
  static void take_far(std::string_view extra, std::initializer_list<std::uint64_t*> values, bool& whole) {
    std::string_view field;
    while (extra.size() >= 4) {
      const std::size_t bytes = u16(extra, 2);
      if (bytes > extra.size() - 4) break;
      if (u16(extra, 0) == kZip64Extra) field = extra.substr(4, bytes);
      extra.remove_prefix(4 + bytes);
    }
    for (std::uint64_t* value : values) {
      if (*value != kAllOnes) continue;
      if (field.size() < 8) {
        whole = false;
        return;
      }
      *value = u64(field, 0);
      field.remove_prefix(8);
    }
  }

  void check_name(const std::string& name) {
    const std::string what = "the name " + in_quotes(name);
    if (name.empty() || name.size() > kMostEntryNameBytes) fail("a name has " + std::to_string(name.size()) + " bytes");
    if (!is_utf8(name)) fail(what + " is no UTF-8");
    if (name.find('\0') != name.npos || name.find('\\') != name.npos) fail(what + " holds a NUL or a backslash");
    const std::size_t slash = name.find('/');
    if (slash == name.npos || slash == 0) fail(what + " is in no folder, or absolute");
    for (std::size_t begin = 0; begin <= name.size();) {
      const std::size_t end = std::min(name.find('/', begin), name.size());
      const std::string_view part = std::string_view(name).substr(begin, end - begin);
      if (part.empty() || part == "." || part == "..") fail(what + " has an empty, '.' or '..' part");
      begin = end + 1;
    }
    if (folder_.empty()) folder_ = name.substr(0, slash + 1);
    if (name.compare(0, folder_.size(), folder_) != 0)
      fail(what + " is not in the folder of the first, " + in_quotes(folder_));
  }

  void read_local(Entry& entry, std::uint64_t end) const {
    const std::string what = in_quotes(entry.name);
    if (entry.header > end || end - entry.header < kLocalBytes) fail(what + " begins past the entries");
    const std::string local = read_text_at(file_, entry.header, kLocalBytes);
    const std::uint64_t name = u16(local, 26), extra = u16(local, 28);
    if (u32(local, 0) != kLocalMagic) fail(what + " has no local header at byte " + std::to_string(entry.header));
    if (end - entry.header - kLocalBytes < name + extra) fail(what + " ends past the entries");
    const std::string more = read_text_at(file_, entry.header + kLocalBytes, name + extra);
    if (more.compare(0, static_cast<std::size_t>(name), entry.name) != 0)
      fail(what + " has another name in its local header");
    if (u16(local, 6) != entry.flags || u16(local, 8) != 0)
      fail(what + " has another method or flags in its local header");
    entry.offset = entry.header + kLocalBytes + name + extra;
    if (entry.bytes > end - entry.offset)
      fail(what + " of " + std::to_string(entry.bytes) + " bytes ends past the entries");
    if (entry.flags & kSizesFollow) return;
    std::uint64_t bytes = u32(local, 22), packed = u32(local, 18);
    bool whole = true;
    take_far(std::string_view(more).substr(static_cast<std::size_t>(name)), {&bytes, &packed}, whole);
    if (!whole || bytes != entry.bytes || packed != entry.bytes || u32(local, 14) != entry.crc)
      fail(what + " has another size or checksum in its local header");
  }

  void check_layout() {
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.header < b.header; });
    if (entries_.front().header != 0) fail("the first entry does not begin at byte 0");
    for (std::size_t i = 1; i < entries_.size(); ++i)
      if (entries_[i].header < entries_[i - 1].offset + entries_[i - 1].bytes)
        fail(in_quotes(entries_[i].name) + " lies over " + in_quotes(entries_[i - 1].name));
  }

  const InputFile& file_;
  std::string where_, folder_;
  std::vector<Entry> entries_;
};

}  // namespace

std::vector<ZipRecord> read_zip(const InputFile& file) { return ZipReader(file).read(); }

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t crc32_of_both(std::uint32_t before, std::uint32_t after, std::size_t bytes) {
  return static_cast<std::uint32_t>(::crc32_combine(before, after, static_cast<z_off_t>(bytes)));
}

}  // namespace weft::runtime
