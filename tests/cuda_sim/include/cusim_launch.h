// tests/cuda_sim/include/cusim_launch.h: calls of kernels with their arguments. Included by cuda_runtime.h.
#pragma once

namespace cusim {

/// Of a kernel, as the bytes that a device gets.
struct Argument {
  const void* data;
  std::size_t bytes;
};
struct KernelCall {
  virtual ~KernelCall() = default;
  virtual void run() const = 0;  // as one device thread
  virtual std::vector<Argument> arguments() const = 0;
};
/// A finding where an argument, or a word of a structure that is one, points to pageable host memory.
void check_pointer(const void* pointer);
void check_words(const void* object, std::size_t bytes);
cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, const void* kernel,
                           std::shared_ptr<const KernelCall> call);
cudaError_t set_max_dynamic_shared(const void* kernel, int bytes);

template <class... P> class BoundCall final : public KernelCall {
 public:
  template <class... A>
  explicit BoundCall(void (*kernel)(P...), A&&... args)
      : kernel_(kernel), args_(static_cast<P>(std::forward<A>(args))...) {
    std::apply([](const auto&... each) { (check_argument(each), ...); }, args_);
  }
  void run() const override { std::apply(kernel_, args_); }
  std::vector<Argument> arguments() const override {
    return std::apply([](const auto&... each) { return std::vector<Argument>{{&each, sizeof each}...}; }, args_);
  }

 private:
  template <class T> static void check_argument(const T& argument) {
    static_assert(std::is_trivially_copyable_v<T>, "a kernel's arguments are copied as bytes");
    if constexpr (std::is_pointer_v<T>) check_pointer(argument);
#if __has_builtin(__builtin_clear_padding)  // where old pointers may lie
    else if constexpr (std::is_class_v<T> && alignof(T) >= alignof(void*)) {
      T words = argument;
      __builtin_clear_padding(&words);
      check_words(&words, sizeof words);
    }
#endif
  }

  void (*kernel_)(P...);
  std::tuple<std::remove_cv_t<P>...> args_;
};

/// The architecture of the kernels' code: where it is PTX that of the device, else one that has all of tensor cores.
int compiled_for();

}  // namespace cusim

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  return cusim::enqueue_launch(*config, reinterpret_cast<const void*>(kernel),
                               std::make_shared<cusim::BoundCall<P...>>(kernel, std::forward<A>(args)...));
}
template <class F> cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute, int value) {
  return cusim::set_max_dynamic_shared(reinterpret_cast<const void*>(kernel), value);
}
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, F*) {
  *attributes = {.ptxVersion = cusim::compiled_for()};
  return cudaSuccess;
}
