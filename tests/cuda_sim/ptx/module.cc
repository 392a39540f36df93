// tests/cuda_sim/ptx/module.cc: the text of a file of PTX: its variables, its kernels, their declarations.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>

#include "decoder.h"

namespace cusim::ptx {
namespace {

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%'; }

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

std::string without_comments(std::string text) {
  for (std::size_t at = 0; (at = text.find("//", at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::fill(text.begin() + static_cast<std::ptrdiff_t>(at), text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
    at = end;
  }
  return text;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    if (std::isspace(static_cast<unsigned char>(text[i]))) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && !std::isspace(static_cast<unsigned char>(text[end]))) ++end;
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

/// Of ".shared .align 32 .b8 name[64]" and the like.
struct Variable {
  std::string name;
  std::size_t align = 1, bytes = 0;
  bool external = false;
};
Variable parse_variable(std::string_view text) {
  Variable v;
  const std::vector<std::string> words = words_of(text.substr(0, text.find('=')));
  std::size_t element = 1;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == ".align" && i + 1 < words.size()) v.align = std::strtoull(words[++i].c_str(), nullptr, 10);
    else if (word == ".extern") v.external = true;
    else if (word[0] == '.' && is_type(word.substr(1))) element = type_bytes(word.substr(1));
    else if (word[0] != '.') v.name = word;
  }
  v.align = std::max(v.align, element);
  const std::size_t bracket = v.name.find('[');
  std::size_t count = 1;
  if (bracket != std::string::npos) {
    count = std::strtoull(v.name.c_str() + bracket + 1, nullptr, 10);
    v.name.resize(bracket);
  }
  v.bytes = element * count;
  return v;
}

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// Reads what is between the name of a kernel and the end of its body.
class KernelReader {
 public:
  KernelReader(Kernel& kernel, const Module& module, const std::unordered_map<int, std::string>& files)
      : kernel_(kernel), decoder_(kernel, module), files_(files) {
    decoder_.open_scope();
  }
  void parameters(std::string_view text);
  void body(std::string_view text);
  /// Where each variable lies, before the first statement names one.
  void lay_out_shared(const std::vector<std::string>& of_module, std::string_view text);

 private:
  void shared_variable(std::string_view text);
  void one(std::string_view text);
  void directive(std::string_view text);

  Kernel& kernel_;
  Decoder decoder_;
  const std::unordered_map<int, std::string>& files_;
  std::vector<std::string> dynamic_;
  std::size_t dynamic_align_ = 16;
  std::string file_;
  int line_ = 0;
};

void KernelReader::parameters(std::string_view text) {
  std::size_t at = 0;
  while (!(text = trim(text)).empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const Variable v = parse_variable(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    at = round_up(at, v.align);
    kernel_.parameters.push_back({v.name, at, v.bytes});
    decoder_.declare(v.name, at);
    at += v.bytes;
  }
  kernel_.parameter_bytes = at;
}

// Variables keep their place in a line of 128 bytes, on which bank conflicts depend, and get a gap of a line.
void KernelReader::shared_variable(std::string_view text) {
  const Variable v = parse_variable(text);
  if (v.external) {
    dynamic_.push_back(v.name);
    dynamic_align_ = std::max(dynamic_align_, v.align);
    return;
  }
  const std::size_t natural = round_up(kernel_.static_bytes, v.align), gaps = 128 * (kernel_.shared.size() + 1);
  kernel_.shared.push_back({v.name, natural + gaps, v.bytes});
  decoder_.declare(v.name, natural + gaps);
  kernel_.static_bytes = natural + v.bytes;
}

void KernelReader::lay_out_shared(const std::vector<std::string>& of_module, std::string_view text) {
  for (const std::string& statement : of_module)
    if (text.find(parse_variable(statement).name) != std::string_view::npos) shared_variable(statement);
  for (std::size_t at = 0; (at = text.find(".shared .", at)) != std::string_view::npos; ++at)
    shared_variable(text.substr(at, text.find(';', at) - at));
  const std::size_t gaps = 128 * (kernel_.shared.size() + 1);
  kernel_.dynamic_offset = round_up(kernel_.static_bytes, dynamic_align_) + gaps;
  for (const std::string& name : dynamic_) decoder_.declare(name, kernel_.dynamic_offset);
}

void KernelReader::directive(std::string_view text) {
  const auto is = [&](std::string_view name) { return text.substr(0, name.size()) == name; };
  if (is(".reg")) return decoder_.declare_registers(text);
  if (is(".shared") || is(".pragma")) return;  // lay_out_shared() has seen to it
  if (is(".local")) {
    const Variable v = parse_variable(text);
    kernel_.local_bytes = round_up(kernel_.local_bytes, v.align);
    decoder_.declare(v.name, kernel_.local_bytes);
    kernel_.local_bytes += v.bytes;
    return;
  }
  throw std::runtime_error("the directive is not known: " + std::string(text));
}

void KernelReader::one(std::string_view text) {
  if (text.empty()) return;
  if (text.front() == '.') directive(text);
  else decoder_.statement(std::string(text), file_, line_);
}

void KernelReader::body(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (std::isspace(static_cast<unsigned char>(c)) || c == ';') {
      ++i;
    } else if (c == '{') {
      decoder_.open_scope();
      ++i;
    } else if (c == '}') {
      decoder_.close_scope();
      ++i;
    } else if (text.substr(i, 4) == ".loc" && !in_name(text[i + 4])) {  // ends with its line: file, line, column
      const std::size_t end = std::min(text.find('\n', i), text.size());
      const std::vector<std::string> words = words_of(text.substr(i, end - i));
      const auto found = files_.find(std::atoi(words.at(1).c_str()));
      if (const int source_line = std::atoi(words.at(2).c_str()); source_line != 0) {  // 0: the compiler's own
        file_ = found == files_.end() ? "" : found->second;
        line_ = source_line;
      }
      i = end;
    } else {
      std::size_t end = i;
      while (end < text.size() && in_name(text[end])) ++end;
      if (end > i && end < text.size() && text[end] == ':') {
        decoder_.label(std::string(text.substr(i, end - i)));
        i = end + 1;
        continue;
      }
      end = std::min(text.find(';', i), text.size());
      one(trim(text.substr(i, end - i)));
      i = end + 1;
    }
  }
  decoder_.finish();
}

/// Behind the brace that closes the one at `open`.
std::size_t end_of_braces(const std::string& text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i + 1;
  }
  throw std::runtime_error("a brace is never closed");
}

}  // namespace

void Module::read_variable(const std::string& statement) {
  const Variable v = parse_variable(statement);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(256, round_up(v.bytes, 256)));
  std::fill(data, data + v.bytes, std::byte{0});
  if (const std::size_t equals = statement.find('='); equals != std::string::npos) {
    const std::size_t dot = statement.find(" .b8 ");
    if (dot == std::string::npos) throw std::runtime_error("a variable is not of bytes: " + statement);
    const char* at = statement.c_str() + statement.find('{', equals) + 1;
    for (std::size_t i = 0; i < v.bytes; ++i) {
      char* end = nullptr;
      data[i] = static_cast<std::byte>(std::strtoul(at, &end, 0));
      if (*end != ',') break;
      at = end + 1;
    }
  }
  variables_.push_back({v.name, v.bytes, data});
}

Module::Module(std::string text) : text_(without_comments(std::move(text))) {
  for (std::size_t i = 0; i < text_.size();) {
    const std::string_view rest = trim(std::string_view(text_).substr(i));
    i = static_cast<std::size_t>(rest.data() - text_.data());
    if (rest.empty()) break;
    const std::size_t line_end = std::min(text_.find('\n', i), text_.size());
    const std::string line = text_.substr(i, line_end - i);
    const std::vector<std::string> words = words_of(line);
    const bool entry = std::find(words.begin(), words.end(), ".entry") != words.end();
    if (entry) {
      const std::size_t name = text_.find(".entry", i) + 7, open = text_.find('(', name);
      entries_[std::string(trim(std::string_view(text_).substr(name, open - name)))] = open;
      i = end_of_braces(text_, text_.find('{', open));
    } else if (words[0] == ".version" || words[0] == ".target" || words[0] == ".address_size") {
      i = line_end;
    } else if (words[0] == ".file") {
      const std::size_t quote = line.find('"') + 1;
      const std::string path = line.substr(quote, line.find('"', quote) - quote);
      files_[std::atoi(words.at(1).c_str())] = path.substr(path.rfind('/') + 1);
      i = line_end;
    } else if (words[0] == ".section") {
      i = end_of_braces(text_, text_.find('{', i));
    } else {
      const std::size_t end = std::min(text_.find(';', i), text_.size());
      const std::string statement = text_.substr(i, end - i);
      if (statement.find(".shared") != std::string::npos) module_statements_.push_back(statement);
      else if (statement.find(".global") != std::string::npos) read_variable(statement);
      else throw std::runtime_error("not known in a module: " + statement.substr(0, 200));
      i = end + 1;
    }
  }
}

std::vector<std::string> Module::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, at] : entries_) names.push_back(name);
  return names;
}

std::unique_ptr<Kernel> Module::translate(const std::string& name) const {
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  const std::size_t open = entries_.at(name), close = text_.find(')', open), brace = text_.find('{', close);
  KernelReader reader(*kernel, *this, files_);
  reader.parameters(std::string_view(text_).substr(open + 1, close - open - 1));
  const std::vector<std::string> words = words_of(std::string_view(text_).substr(close + 1, brace - close - 1));
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == ".maxntid") kernel->most_threads = static_cast<unsigned>(std::atoi(words[i + 1].c_str()));
  const std::string_view body = std::string_view(text_).substr(brace + 1, end_of_braces(text_, brace) - brace - 2);
  reader.lay_out_shared(module_statements_, body);
  reader.body(body);
  return kernel;
}

}  // namespace cusim::ptx
