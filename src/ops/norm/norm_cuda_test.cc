// What only a GPU can show: more than 2^32 elements, streams, graphs, and a workspace that does not
// grow.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuda/check.h"
#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

using cuda::check;

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// ---- more than 2^32 elements ---------------------------------------------------------------

constexpr std::int64_t kBlockRows = 64;

// [rows, cols] bf16 on the GPU, made of copies of one block of kBlockRows rows.
Tensor repeated(const std::vector<double>& block, std::int64_t rows, std::int64_t cols) {
  const Guarded source(test_device(), DType::bf16, {kBlockRows, cols}, block);
  Tensor tensor = Tensor::empty({rows, cols}, DType::bf16, test_device());
  auto* data = static_cast<std::byte*>(tensor.data());
  std::int64_t done = kBlockRows;
  check(cudaMemcpy(data, source.view().data, static_cast<std::size_t>(done * cols * 2),
                   cudaMemcpyDeviceToDevice),
        "copy");
  while (done < rows) {
    const std::int64_t more = std::min(done, rows - done);
    check(cudaMemcpy(data + done * cols * 2, data, static_cast<std::size_t>(more * cols * 2),
                     cudaMemcpyDeviceToDevice),
          "copy");
    done += more;
  }
  return tensor;
}

// Rows [first, first + count) as numbers.
std::vector<double> download_rows(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  const std::int64_t cols = tensor.sizes()[1];
  Tensor host = Tensor::empty({count, cols}, DType::bf16);
  check(cudaMemcpy(host.data(), static_cast<const std::byte*>(tensor.data()) + first * cols * 2,
                   static_cast<std::size_t>(host.bytes()), cudaMemcpyDeviceToHost),
        "copy");
  std::vector<double> values;
  for (const Bf16 value : host.values<Bf16>()) values.push_back(static_cast<double>(value));
  return values;
}

// Every row must be a copy of the row of the first block that has its inputs; the block itself is
// held against the oracle. Looked at: the start, around element 2^31 and 2^32, and the end.
void check_rows(const Tensor& result, const Expected& block, const char* name) {
  const std::int64_t rows = result.sizes()[0];
  const std::int64_t cols = result.sizes()[1];
  const std::vector<double> first = download_rows(result, 0, kBlockRows);
  EXPECT_TRUE(close(first, block, DType::bf16, cols)) << name;
  for (const std::int64_t near :
       {(std::int64_t{1} << 31) / cols, (std::int64_t{1} << 32) / cols, rows - 3}) {
    const std::int64_t begin = std::min(near - 2, rows - 5);
    const std::vector<double> there = download_rows(result, begin, 5);
    for (std::int64_t i = 0; i < 5 * cols; ++i) {
      const std::int64_t same = (begin + i / cols) % kBlockRows * cols + i % cols;
      ASSERT_EQ(there[static_cast<std::size_t>(i)], first[static_cast<std::size_t>(same)])
          << name << ", row " << begin + i / cols << ", column " << i % cols;
    }
  }
}

// How many times each row of the block occurs, times its part of the column sums.
std::vector<double> repeated_dweight(const Problem& p, const Data& data, const Statistics& s,
                                     std::int64_t rows) {
  std::vector<double> dweight(static_cast<std::size_t>(p.cols));
  for (std::int64_t r = 0; r < kBlockRows; ++r) {
    const auto times = static_cast<double>(rows / kBlockRows + (r < rows % kBlockRows ? 1 : 0));
    const auto row = static_cast<std::size_t>(r);
    for (std::size_t c = 0; c < dweight.size(); ++c) {
      const std::size_t i = row * dweight.size() + c;
      const double mean = p.kind == Kind::layer ? s.mean[row] : 0.0;
      dweight[c] += times * data.dy[i] * (data.h[i] - mean) * s.rstd[row];
    }
  }
  return dweight;
}

template <class Args>
std::vector<std::string> accepting(Kind kind, const Args& args) {
  Runner context({.device = test_device()});
  std::vector<std::string> names;
  for (const ImplementationReport& report : reports(context, kind, args)) {
    if (report.accepted) names.push_back(report.name);
  }
  return names;
}

void poison(Tensor& tensor) {
  check(cudaMemset(tensor.data(), 0xff, static_cast<std::size_t>(tensor.bytes())), "poison");
}

// `block` is the problem of the first rows, of which all others are copies.
void check_large_forward(const Problem& block, const Data& data, ForwardArgs args, Tensor& y) {
  const ExpectedForward expected = expected_forward(block, data);
  args.y = y;
  for_each_runner(accepting(block.kind, args), [&](Runner& context) {
    poison(y);
    call(context, block.kind, context.with(args));
    context.synchronize();
    check_rows(y, expected.y, "y");
  });
}

void check_large_backward(const Problem& block, const Data& data, BackwardArgs args, Tensor& dx) {
  const ExpectedBackward expected = expected_backward(block, data);
  const std::vector<double> sums =
      repeated_dweight(block, data, oracle_statistics(block, data), dx.sizes()[0]);
  Tensor dweight = Tensor::empty({block.cols}, DType::f32, test_device());
  args.dx = dx;
  args.dweight = dweight;
  for_each_runner(accepting(block.kind, args), [&](Runner& context) {
    poison(dx);
    poison(dweight);
    call(context, block.kind, context.with(args));
    context.synchronize();
    check_rows(dx, expected.dx, "dx");
    const Tensor host = dweight.to(Device::cpu());
    const std::vector<double> got(host.values<float>().begin(), host.values<float>().end());
    EXPECT_LE(relative_l2(got, sums), 1e-6);
  });
}

void check_large(Kind kind, std::int64_t rows, std::int64_t cols) {
  ASSERT_GT(rows * cols, std::int64_t{1} << 32);
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const auto needed = static_cast<std::size_t>(3 * rows * cols * 2) + (std::size_t{1} << 30);
  if (free < needed) {
    GTEST_SKIP() << "needs " << needed << " bytes of GPU memory, there are " << free;
  }
  Problem p{.kind = kind, .lead = {kBlockRows}, .cols = cols};
  p.dtypes.x = DType::bf16;
  SCOPED_TRACE(p.describe());
  const Data data = make_data(p);
  const ForwardRun block(p, data);  // for weight and bias
  const Tensor x = repeated(data.x, rows, cols);
  Tensor output = Tensor::empty({rows, cols}, DType::bf16, test_device());
  Tensor mean = Tensor::zeros({rows}, DType::f32, test_device());
  Tensor rstd = Tensor::zeros({rows}, DType::f32, test_device());
  ForwardArgs forward = block.args;
  forward.x = x;
  forward.mean = kind == Kind::layer ? mean.view() : TensorView{};
  forward.rstd = rstd;
  check_large_forward(p, data, forward, output);
  const Tensor dy = repeated(data.dy, rows, cols);
  BackwardArgs backward;
  backward.dy = dy;
  backward.x = x;
  backward.mean = forward.mean;
  backward.rstd = rstd;
  backward.weight = block.args.weight;
  check_large_backward(p, data, backward, output);
}

TEST(NormCudaLarge, OddRowsAndColumns) { check_large(Kind::layer, 65537, 65537); }
TEST(NormCudaLarge, ManyAlignedRows) { check_large(Kind::layer, std::int64_t{1} << 20, 4104); }
TEST(NormCudaLarge, RmsOfManyShortRows) { check_large(Kind::rms, std::int64_t{1} << 26, 72); }

// ---- the same row in batches of any size ----------------------------------------------------

// Small, medium and large batches are taken by different kernels.
TEST(NormCudaBits, SameRowInABatchOfAnySize) {
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {768, 1000, 1024, 2048, 4096}) {
      Problem p{.kind = kind, .lead = {kBlockRows}, .cols = cols};
      p.dtypes.x = DType::bf16;
      SCOPED_TRACE(p.describe());
      Data data = make_data(p);
      for (std::int64_t c = 0; c < cols; ++c) {  // rows that ordinary arithmetic does not manage
        data.x[static_cast<std::size_t>(3 * cols + c)] *= 1e30;
        data.x[static_cast<std::size_t>(5 * cols + c)] *= 1e-30;
        data.x[static_cast<std::size_t>(7 * cols + c)] = c == 0 ? 1e4 : 1;
      }
      const ForwardRun block(p, data);  // for weight and bias
      const auto last_rows = [&](std::int64_t bytes) {
        const std::int64_t rows = bytes / (2 * cols) / kBlockRows * kBlockRows;
        const Tensor x = repeated(data.x, rows, cols);
        Tensor y = Tensor::empty({rows, cols}, DType::bf16, test_device());
        Tensor mean = Tensor::zeros({rows}, DType::f32, test_device());
        Tensor rstd = Tensor::zeros({rows}, DType::f32, test_device());
        ForwardArgs args = block.args;
        args.x = x;
        args.y = y;
        args.mean = kind == Kind::layer ? mean.view() : TensorView{};
        args.rstd = rstd;
        Runner context({.device = test_device()});
        call(context, kind, context.with(args));
        context.synchronize();
        return download_rows(y, rows - kBlockRows, kBlockRows);
      };
      const std::vector<double> small = last_rows(std::int64_t{1} << 20);
      EXPECT_EQ(small, last_rows(std::int64_t{20} << 20));
      EXPECT_EQ(small, last_rows(std::int64_t{80} << 20));
    }
  }
}

// `persistent` and `registers` add in the same order, so that the choice between them, which
// depends on the number of rows, does not show in the bits of a row.
TEST(NormCudaKernels, PersistentAndRegistersGiveTheSameBits) {
  for (const Kind kind : kBothKinds) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t row_bytes : {1040, 2048, 3088, 4096, 8192}) {
        const std::int64_t cols = row_bytes / size_of(dtype);
        Problem p{.kind = kind, .lead = {(std::int64_t{9} << 20) / row_bytes}, .cols = cols};
        p.dtypes.x = dtype;
        SCOPED_TRACE(p.describe());
        ForwardRun run(p, make_data(p));
        std::vector<std::vector<std::byte>> y, rstd;
        for (const char* name : {"persistent", "registers"}) {
          const std::vector<std::string> names = run.accepting();
          if (std::find(names.begin(), names.end(), name) == names.end()) continue;
          Runner context({.device = test_device(), .implementation = name});
          run.run(context);
          y.push_back(run.y.bytes());
          rstd.push_back(run.rstd.bytes());
        }
        if (y.size() < 2) GTEST_SKIP() << "persistent needs a Hopper GPU";
        EXPECT_TRUE(y[0] == y[1]);
        EXPECT_TRUE(rstd[0] == rstd[1]);
      }
    }
  }
}

// What explain() says of a call that `persistent` refuses names the limit.
TEST(NormCudaKernels, RefusalsNameTheLimit) {
  const Problem p{.lead = {3}, .cols = 1024};
  const ForwardRun run(p, make_data(p));
  Context context({.device = test_device()});
  const std::vector<ImplementationReport> list = reports(context, p.kind, run.args);
  ASSERT_EQ(list.front().name, "persistent");
  EXPECT_FALSE(list.front().accepted);
  const std::string& refusal = list.front().refusal;
  if (refusal.find("Hopper") == std::string::npos) {
    EXPECT_EQ(refusal, "x of 12288 bytes: expected more than 8388608, at most 41943040");
  }
}

// ---- streams and graphs --------------------------------------------------------------------

std::vector<Problem> stream_problems() {
  std::vector<Problem> list;
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {65, 1024, 8192, 65537}) {
      list.push_back({.kind = kind, .lead = {100}, .cols = cols, .fused = true});
    }
  }
  return list;
}

TEST(NormCudaStream, AnyStreamGivesTheSameBits) {
  for (const Problem& p : stream_problems()) {
    const Data data = make_data(p);
    for_each_round_trip(p, data, [&](Runner& context, ForwardRun& f, BackwardRun& b) {
      const std::vector<std::byte> y = f.y.bytes();
      const std::vector<std::byte> dx = b.dx.bytes();
      const std::vector<std::byte> dweight = b.dweight.bytes();
      const Stream stream;
      Runner other({.device = test_device(),
                    .stream = stream.get(),
                    .implementation = context.implementation()});
      f.run(other);
      b.run(other);
      EXPECT_TRUE(same_bits(f.y, y));
      EXPECT_TRUE(same_bits(b.dx, dx));
      EXPECT_TRUE(same_bits(b.dweight, dweight));
    });
  }
}

// Captured in the strictest mode, where an allocation or a synchronization anywhere is an error,
// and replayed several times on poisoned outputs.
TEST(NormCudaStream, CanBeCapturedInAGraph) {
  for (const Problem& p : stream_problems()) {
    const Data data = make_data(p);
    for_each_round_trip(p, data, [&](Runner& context, ForwardRun& f, BackwardRun& b) {
      const std::vector<std::byte> y = f.y.bytes();
      const std::vector<std::byte> dx = b.dx.bytes();
      const std::vector<std::byte> dweight = b.dweight.bytes();
      const Stream stream;
      Runner captured({.device = test_device(),
                       .stream = stream.get(),
                       .implementation = context.implementation()});
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "begin capture");
      call(captured, p.kind, captured.with(f.args));
      call(captured, p.kind, b.args_on(captured));
      check(cudaStreamEndCapture(stream.get(), &graph), "end capture");
      check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      for (int replay = 0; replay < 3; ++replay) {
        for (Guarded* output : {&f.y, &f.sum, &f.mean, &f.rstd, &b.dx, &b.dweight, &b.dbias}) {
          output->poison();
        }
        check(cudaGraphLaunch(executable, stream.get()), "launch");
        captured.synchronize();
        EXPECT_TRUE(same_bits(f.y, y)) << "replay " << replay;
        EXPECT_TRUE(same_bits(b.dx, dx)) << "replay " << replay;
        EXPECT_TRUE(same_bits(b.dweight, dweight)) << "replay " << replay;
      }
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    });
  }
}

// ---- workspace -----------------------------------------------------------------------------

// Too little scratch is refused before anything is written, and the message says what helps.
TEST(NormCudaWorkspace, TooLittleIsRefusedCleanly) {
  for (const Kind kind : kBothKinds) {
    const Problem p{.kind = kind, .lead = {1000}, .cols = 8192};
    const Data data = make_data(p);
    BackwardRun run(p, data);
    const ExpectedBackward expected = expected_backward(p, data);
    for (const std::string& name : run.accepting()) {
      SCOPED_TRACE(name);
      Runner context({.device = test_device(), .workspace_bytes = 0, .implementation = name});
      try {
        run.run(context);  // an implementation may do without scratch
      } catch (const OutOfMemory& error) {
        EXPECT_NE(std::string(error.what()).find("reserve_workspace"), std::string::npos)
            << error.what();
        EXPECT_TRUE(run.dx.unchanged());
        EXPECT_TRUE(run.dweight.unchanged());
        context.reserve_workspace(std::int64_t{256} << 20);
        run.run(context);
      }
      EXPECT_TRUE(close(run.dx.values(), expected.dx, DType::f32, p.cols));
      EXPECT_TRUE(close(run.dweight.values(), expected.dweight, DType::f32));
    }
  }
}

// The default workspace is enough for anything of an ordinary model.
TEST(NormCudaWorkspace, DefaultIsEnough) {
  for (const std::int64_t cols : {1024, 16384, 65536, 131072}) {
    const Problem p{.lead = {512}, .cols = cols};
    BackwardRun run(p, make_data(p));
    for_each_runner(run.accepting(), [&](Runner& context) { EXPECT_NO_THROW(run.run(context)); });
  }
}

}  // namespace
}  // namespace touchstone::test
