#include "kernels/backend/cuda_libraries.h"

#include <dlfcn.h>
#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/error.h"

namespace weft::kernels {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCublas = "libcublasLt.so.";  // what weft_cuda is linked with

/// `path` with what glob() would take for a pattern escaped.
std::string literally(const std::string& path) {
  std::string escaped;
  for (const char letter : path) {
    if (std::string_view("*?[\\").find(letter) != std::string_view::npos) escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

void add_matches(const std::string& pattern, std::vector<std::string>& files) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = found.gl_pathc; i-- > 0;) files.emplace_back(found.gl_pathv[i]);  // newer versions first
  globfree(&found);
}

/// The files in a folder whose names are kCublas and one number.
std::vector<std::string> cublas_in(const fs::path& folder) {
  std::vector<std::string> all, files;
  add_matches(literally(folder.string()) + "/" + std::string(kCublas) + "*", all);
  for (const std::string& file : all)
    if (file.find_first_not_of("0123456789", file.rfind(kCublas) + kCublas.size()) == std::string::npos)
      files.push_back(file);
  return files;
}

/// Opens a library, which is not closed again.
bool opens(const std::string& file) { return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr; }

/// The files called `name`, such as "libcublasLt.so.13", the likeliest first: in the toolkit that CUDA_PATH or
/// CUDA_HOME names, in the Python environment that is active (VIRTUAL_ENV, CONDA_PREFIX) or whose python is on the PATH
/// (packages of PyPI put them into nvidia/*/lib), in toolkits under /usr/local, and in the Python packages of the
/// system and the user.
std::vector<std::string> files_of_cuda(const std::string& name) {
  const auto value = [&](const char* variable) -> std::string {
    const char* const text = std::getenv(variable);
    return text ? literally(text) : "";
  };
  std::vector<std::string> files;
  const auto toolkit = [&](const std::string& folder) { add_matches(folder + "/lib64/" + name, files); };
  // The folder of a Python, such as /usr: packages of PyPI are in site-packages, and in Debian's dist-packages.
  const auto python = [&](const std::string& folder) {
    for (const char* const packages : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages"})
      add_matches(folder + packages + "/nvidia/*/lib/" + name, files);
  };
  for (const char* const variable : {"CUDA_PATH", "CUDA_HOME"})
    if (const std::string folder = value(variable); !folder.empty()) toolkit(folder);
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string folder = value(variable); !folder.empty()) {
      python(folder);
      add_matches(folder + "/lib/" + name, files);
    }
  std::string_view path = std::getenv("PATH") ? std::getenv("PATH") : "";
  while (!path.empty()) {
    const std::size_t end = std::min(path.find(':'), path.size());
    const fs::path folder(path.substr(0, end));
    if (folder.is_absolute() && folder.filename() == "bin" && fs::exists(folder / "python3"))
      python(literally(folder.parent_path().string()));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  for (const char* const folder : {"/usr/local/cuda", "/usr/local/cuda-*", "/usr/local/nvidia", "/opt/cuda"})
    toolkit(folder);
  for (const char* const folder : {"/usr/local", "/usr"}) python(folder);
  add_matches("/usr/lib/python3/dist-packages/nvidia/*/lib/" + name, files);
  if (const std::string home = value("HOME"); !home.empty()) python(home + "/.local");
  return files;
}

}  // namespace

void open_chosen_cublas() {
  const char* const chosen = std::getenv("WEFT_CUBLAS");
  if (!chosen) return;
  const fs::path place(chosen);
  const std::vector<std::string> files = cublas_in(fs::is_directory(place) ? place : place.parent_path());
  if (files.empty())
    throw UsageError("WEFT_CUBLAS=" + place.string() +
                     ": wanted the folder of a libcublasLt.so, got one without; unset it, " +
                     "or use the nvidia/*/lib of a Python environment or the lib64 of CUDA's toolkit");
  for (const std::string& file : files)
    if (!opens(file)) throw UsageError("WEFT_CUBLAS=" + place.string() + ": " + dlerror());
}

void* open_with_cublas(const char* library, std::string& error) {
  const auto open = [&] {
    void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!opened) error = dlerror();
    return opened;
  };
  if (void* const opened = open()) return opened;
  const std::string_view missing = std::string_view(error).substr(0, error.find(": cannot open"));
  if (!missing.starts_with(kCublas) || missing.size() == error.size()) return nullptr;
  for (const std::string& file : files_of_cuda(std::string(missing)))
    if (opens(file)) return open();
  return nullptr;
}

}  // namespace weft::kernels
