// runtime/serve/child.h: a process of this same program.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::runtime {

/// Runs this program with other arguments, in a session of its own. It gets SIGTERM when the thread that started it
/// ends, however that is, and SIGKILL when this object goes while it still runs.
class Child {
 public:
  /// Its standard error goes to the file `said`, which is replaced; its standard input and output are empty.
  /// Throws IoError.
  Child(const std::vector<std::string>& arguments, std::filesystem::path said);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The exit code, or minus the signal that ended it; nothing while it runs.
  std::optional<int> ended();
  void stop();  ///< asks it to end as Ctrl-C does; it may take ten seconds
  /// The error that it named, or how it ended. Call it once it has ended.
  std::string error() const;

 private:
  std::filesystem::path said_;
  int process_ = -1;
  std::optional<int> code_;
};

}  // namespace weft::runtime
