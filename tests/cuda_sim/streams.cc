// tests/cuda_sim/streams.cc: one worker thread per stream, and the events between them.
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <optional>
#include <thread>

#include "internal.h"

namespace cusim {
namespace {

struct Work {
  std::uint64_t number = 0;
  bool touches_device = false;
  std::function<void()> run;
};
struct Record {
  CUstream_st* stream;
  std::uint64_t number = 0;
};

/// What submit() was given while a stream was captured.
struct Node {
  What what;
  std::vector<Range> ranges;
  std::function<void()> work;
};

}  // namespace
}  // namespace cusim

struct CUgraph_st {
  std::vector<cusim::Node> nodes;
  bool spoilt = false;
};
struct CUgraphExec_st {
  std::vector<cusim::Node> nodes;
  std::size_t device_bytes = 0;
};
struct CUstream_st {  // never freed, so that events may outlive their stream; under the lock but for `worker`
  std::deque<std::unique_ptr<cusim::Work>> queue;
  std::uint64_t last = 0, done = 0, demanded = 0;  // numbers of work: enqueued, finished, asked for
  bool lazy = false, stopping = false;
  char tag = 0;
  std::condition_variable wanted, finished;  // the worker waits for work, others wait for its end
  CUgraph_st* capture = nullptr;             // of the thread that submits
  std::thread worker;
};
struct CUevent_st {
  std::shared_ptr<cusim::Record> record;  // of the last cudaEventRecord; under the lock
};

namespace cusim {
namespace {

struct Streams {
  std::vector<CUstream_st*> all, retired;  // under the lock
  std::uint64_t created = 0;
};
Streams& streams() {
  static Streams& one = *new Streams;
  return one;
}

bool is_asked_for(const CUstream_st* s, const Work& work) {  // under the lock
  return !s->lazy || s->stopping || s->demanded >= work.number;
}

/// Takes the next piece of work; null when the stream is to end.
std::unique_ptr<Work> next_work(CUstream_st* s) {
  Lock lock;
  s->wanted.wait(lock.lock, [&] { return s->stopping || !s->queue.empty(); });
  if (s->queue.empty()) return nullptr;
  const auto asked = [&] { return is_asked_for(s, *s->queue.front()); };
  const std::chrono::milliseconds patience(config().lazy_milliseconds);
  if (!s->wanted.wait_for(lock.lock, patience, asked)) s->demanded = s->last;
  std::unique_ptr<Work> work = std::move(s->queue.front());
  s->queue.pop_front();
  return work;
}

bool is_idle(const CUstream_st* s) {
  Lock lock;
  return s->queue.empty() || !is_asked_for(s, *s->queue.front());
}

void serve(CUstream_st* s) {
  std::vector<char> signal_stack(64 << 10);  // for device threads that run off their stack
  const stack_t stack{signal_stack.data(), 0, signal_stack.size()};
  stack_t previous = {};
  sigaltstack(&stack, &previous);
  std::optional<DeviceAccess> access;  // kept from one piece of work to the next, for it may cost many system calls
  while (std::unique_ptr<Work> work = next_work(s)) {
    if (!work->touches_device) access.reset();  // it may wait for long
    else if (!access) access.emplace();
    acquire(work.get());
    work->run();
    release(&s->tag);
    const std::uint64_t number = work->number;
    work.reset();
    if (is_idle(s)) access.reset();  // before anybody hears that the work is done
    Lock lock;
    s->done = number;
    s->finished.notify_all();
  }
  sigaltstack(&previous, nullptr);
}

std::uint64_t enqueue(CUstream_st* s, bool touches_device, std::function<void()> run) {
  auto work = std::make_unique<Work>();
  work->touches_device = touches_device;
  work->run = std::move(run);
  release(work.get());
  Lock lock;
  work->number = ++s->last;
  s->queue.push_back(std::move(work));
  s->wanted.notify_one();
  return s->last;
}

bool is_done(CUstream_st* s, std::uint64_t number) {  // who asks makes even a lazy stream go on
  Lock lock;
  s->demanded = std::max(s->demanded, number);
  s->wanted.notify_one();
  return s->done >= number;
}
void await(CUstream_st* s, std::uint64_t number) {
  is_done(s, number);
  Lock lock;
  s->finished.wait(lock.lock, [&] { return s->done >= number; });
}
void drain(CUstream_st* s) {
  std::uint64_t last;
  {
    Lock lock;
    last = s->last;
  }
  await(s, last);
  acquire(&s->tag);
}
void retire(CUstream_st* s) {
  drain(s);
  {
    Lock lock;
    s->stopping = true;
    s->wanted.notify_one();
    std::erase(streams().all, s);
    streams().retired.push_back(s);
  }
  s->worker.join();
}

CUstream_st* make_stream() {
  static const int at_exit = std::atexit([] {
    while (!streams().all.empty()) retire(streams().all.back());
  });
  static_cast<void>(at_exit);
  auto* const s = new CUstream_st;
  s->worker = std::thread(serve, s);
  Lock lock;
  const std::string& lazy = config().lazy;
  if (!lazy.empty()) s->lazy = lazy[streams().created++ % lazy.size()] == '1';
  streams().all.push_back(s);
  counters().streams_live++;
  return s;
}

bool is_stream(CUstream_st* s) {
  if (s == nullptr) {
    finding("default stream", "the project makes its own; the default one would serialise them");
    return false;
  }
  Lock lock;
  return std::find(streams().all.begin(), streams().all.end(), s) != streams().all.end();
}

thread_local CUgraph_st* captured = nullptr;  // by this thread

std::shared_ptr<Record> record_of(cudaEvent_t event) {
  Lock lock;
  return event->record;
}

}  // namespace

bool spoils_capture() {
  if (captured == nullptr) return false;
  captured->spoilt = true;
  return true;
}

void drain_all() {
  std::vector<CUstream_st*> all;
  {
    Lock lock;
    all = streams().all;
  }
  for (CUstream_st* s : all) drain(s);
}

cudaError_t submit(What what, cudaStream_t stream, std::vector<Range> ranges, std::function<void()> work) {
  if (!is_stream(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    stream->capture->nodes.push_back({what, std::move(ranges), std::move(work)});
    return cudaSuccess;
  }
  const Injected planted = injected(what);
  if (planted.now != cudaSuccess) return planted.now;
  enqueue(stream, true, [work = std::move(work), ranges = std::move(ranges), later = planted.later] {
    if (sticky() != cudaSuccess) return;
    if (later != cudaSuccess) return set_sticky(later);
    for (const Range& range : ranges)  // may have been freed since
      if (!check_range(range)) return;
    work();
  });
  return cudaSuccess;
}

}  // namespace cusim

using namespace cusim;

#define CUSIM_ENTER_STREAM(stream)                                         \
  CUSIM_ENTER();                                                           \
  if (!is_stream(stream)) return remember(cudaErrorInvalidResourceHandle); \
  if (stream->capture) {                                                   \
    stream->capture->spoilt = true;                                        \
    return remember(cudaErrorStreamCaptureUnsupported);                    \
  }                                                                        \
  static_assert(true)

extern "C" {
cudaError_t cudaDeviceSynchronize() {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  drain_all();
  return remember(sticky());
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  CUSIM_ENTER();
  *stream = make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  CUSIM_ENTER_STREAM(stream);
  CUSIM_NOT_IN_CAPTURE();
  stream->capture = captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!is_stream(stream) || !stream->capture) return remember(cudaErrorInvalidResourceHandle);
  captured = nullptr;
  *graph = std::exchange(stream->capture, nullptr);
  if (!(*graph)->spoilt) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return remember(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = nullptr;
  const std::size_t bytes = graph->nodes.size() * config().graph_node_bytes;
  Lock lock;
  Stats& s = counters();
  const std::size_t again = config().keeps_graph_memory ? std::min<std::size_t>(bytes, s.graph_memory_kept) : 0;
  if (s.device_live + bytes - again > config().device_capacity) return remember(cudaErrorMemoryAllocation);
  s.device_live += bytes - again, s.graph_memory_kept -= again;
  s.executables_peak = std::max(s.executables_peak, ++s.executables_live);
  *executable = new CUgraphExec_st{graph->nodes, bytes};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {  // nodes on their way are copies
  Lock lock;
  if (config().keeps_graph_memory) counters().graph_memory_kept += executable->device_bytes;
  else if (!config().loses_graph_memory) counters().device_live -= executable->device_bytes;
  counters().executables_live--;
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream) {
  CUSIM_ENTER_STREAM(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  CUSIM_ENTER_STREAM(stream);
  for (const Node& node : executable->nodes)
    if (const cudaError_t error = submit(node.what, stream, node.ranges, node.work); error != cudaSuccess)
      return remember(error);
  {
    Lock lock;
    counters().graphs++;
  }
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!is_stream(stream)) return remember(cudaErrorInvalidResourceHandle);
  retire(stream);
  Lock lock;
  counters().streams_live--;
  return remember(sticky());
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER_STREAM(stream);
  drain(stream);
  return remember(sticky());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUSIM_ENTER_STREAM(stream);
  if (auto record = record_of(event); record && record->stream != stream)
    enqueue(stream, false, [record] {
      await(record->stream, record->number);
      acquire(record.get());
    });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  CUSIM_ENTER();
  *event = new CUevent_st;
  Lock lock;
  counters().events_live++;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return remember(cudaErrorInvalidResourceHandle);
  Lock lock;
  counters().events_live--;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUSIM_ENTER_STREAM(stream);
  auto record = std::make_shared<Record>(Record{stream});
  const std::uint64_t number = enqueue(stream, false, [record] { release(record.get()); });
  Lock lock;
  record->number = number;
  event->record = std::move(record);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  if (const auto record = record_of(event)) {
    if (!is_done(record->stream, record->number)) return cudaErrorNotReady;
    acquire(record.get());
  }
  return remember(sticky());
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  if (const auto record = record_of(event)) {
    await(record->stream, record->number);
    acquire(record.get());
  }
  return remember(sticky());
}
}
