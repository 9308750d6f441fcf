// Products by cuBLASLt, found at run time: a named implementation for callers to whom its speed is
// worth more than rows that keep their bits in any batch.
#include <cublasLt.h>
#include <dlfcn.h>

#include <mutex>
#include <string>

#include "core/context_access.h"
#include "ops/linear/cuda/linear_cuda.cuh"
#include "touchstone/core/error.h"

namespace touchstone::linear_layer {
namespace {

constexpr std::int64_t kWorkspace = std::int64_t{32} << 20;
constexpr int kMaxDevices = 64;

// The functions of the library, each by its name.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  bool found = false;

  // Never closed: its handles live as long as the process.
  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    found = true;
    const auto get = [&](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      found = found && function != nullptr;
    };
    get(create, "cublasLtCreate");
    get(matmul, "cublasLtMatmul");
    get(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    get(desc_create, "cublasLtMatmulDescCreate");
    get(desc_destroy, "cublasLtMatmulDescDestroy");
    get(desc_set, "cublasLtMatmulDescSetAttribute");
    get(layout_create, "cublasLtMatrixLayoutCreate");
    get(layout_destroy, "cublasLtMatrixLayoutDestroy");
    get(preference_create, "cublasLtMatmulPreferenceCreate");
    get(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    get(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  }
};

const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError("linear: " + std::string(what) + ": error " +
                      std::to_string(static_cast<int>(status)));
  }
}

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  static cublasLtHandle_t handles[kMaxDevices];
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) check(library().create(&handle), "cublasLtCreate");
  return handle;
}

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::f32) return CUDA_R_32F;
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// One operand, row by row in memory: the library sees its transpose.
struct Matrix {
  const void* data;
  DType dtype;
  std::int64_t stride;
  bool transposed = false;
};

// C = op(A) op(B) for matrices stored row by row, which the library sees as C^T = op(B)^T op(A)^T.
class Product {
 public:
  Product(Context& context, const Matrix& a, const Matrix& b, const Matrix& c, std::int64_t m,
          std::int64_t n, std::int64_t k) {
    const Library& lt = library();
    check(lt.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t op_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(lt.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b)), "transposition");
    check(lt.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a)), "transposition");
    layout(left_, b, b.transposed ? k : n, b.transposed ? n : k);
    layout(right_, a, a.transposed ? m : k, a.transposed ? k : m);
    layout(result_, c, n, m);
    check(lt.preference_create(&preference_), "cublasLtMatmulPreferenceCreate");
    const std::size_t bytes = kWorkspace;
    check(lt.preference_set(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                            sizeof(bytes)),
          "workspace");
    int found = 0;
    handle_ = handle_of(context.device().index);
    check(lt.heuristic(handle_, desc_, left_, right_, result_, result_, preference_, 1, &chosen_,
                       &found),
          "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw Unsupported("linear: cuBLASLt has no algorithm for this product");
  }
  ~Product() {
    const Library& lt = library();
    lt.preference_destroy(preference_);
    for (const cublasLtMatrixLayout_t layout : {left_, right_, result_}) lt.layout_destroy(layout);
    lt.desc_destroy(desc_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void run(Context& context, const Matrix& a, const Matrix& b, const Matrix& c, float beta) {
    void* const workspace = detail::ContextAccess::workspace(context, kWorkspace);
    const float one = 1;
    check(library().matmul(handle_, desc_, &one, b.data, left_, a.data, right_, &beta, c.data,
                           result_, const_cast<void*>(c.data), result_, &chosen_.algo, workspace,
                           kWorkspace, cuda::stream_of(context)),
          "cublasLtMatmul");
  }

 private:
  static void layout(cublasLtMatrixLayout_t& to, const Matrix& m, std::int64_t rows,
                     std::int64_t columns) {
    check(library().layout_create(&to, type_of(m.dtype), static_cast<std::uint64_t>(rows),
                                  static_cast<std::uint64_t>(columns), m.stride),
          "cublasLtMatrixLayoutCreate");
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr;
  cublasLtMatrixLayout_t right_ = nullptr;
  cublasLtMatrixLayout_t result_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

void multiply(Context& context, const Matrix& a, const Matrix& b, const Matrix& c, std::int64_t m,
              std::int64_t n, std::int64_t k, float beta) {
  const cuda::DeviceScope scope(context.device().index);
  Product(context, a, b, c, m, n, k).run(context, a, b, c, beta);
}

std::string refusal(const Context& context, bool allowed, DType dtype, const WeightFormat* format) {
  if (!allowed) return "its bits depend on the batch and bits_may_depend_on_batch is not set";
  if (!library().found) return "cuBLASLt is not installed";
  if (format != nullptr && format->dtype != dtype) return "weight is not of the dtype of x";
  if (context.workspace_bytes() < kWorkspace) return "a workspace of less than 32 MB";
  return {};
}

std::int64_t weight_stride(const Weight& w) { return w.row_bytes / w.format->block_bytes; }

}  // namespace

std::string cublaslt_refuses_forward(const Context& context, const Forward& p) {
  std::string reason = refusal(context, p.bits_may_depend_on_batch, p.dtype, p.weight.format);
  if (!reason.empty()) return reason;
  if (p.in == 0) return "in = 0";
  if (p.bias != nullptr || p.residual.data != nullptr || p.gate != LinearGate::none ||
      p.soft_cap > 0 || p.int8_activations) {
    return "the product alone, without bias, residual, gate, soft_cap or int8_activations";
  }
  return {};
}

std::string cublaslt_refuses_backward(const Context& context, const Backward& p) {
  std::string reason = refusal(context, p.bits_may_depend_on_batch, p.dtype,
                               p.dx.data != nullptr ? p.weight.format : nullptr);
  if (!reason.empty()) return reason;
  if (p.rows == 0 || p.in == 0 || p.out == 0) return "a size of 0";
  return {};
}

void forward_cublaslt(Context& context, const Forward& p) {
  multiply(context, {p.x.data, p.dtype, p.x.stride},
           {p.weight.data, p.dtype, weight_stride(p.weight), true},
           {p.y.data, p.y_dtype, p.y.stride}, p.rows, p.out, p.in, 0);
}

void backward_cublaslt(Context& context, const Backward& p) {
  const Matrix dy{p.dy.data, p.dtype, p.dy.stride};
  if (p.dx.data != nullptr) {
    multiply(context, dy, {p.weight.data, p.dtype, weight_stride(p.weight)},
             {p.dx.data, p.dtype, p.dx.stride}, p.rows, p.in, p.out, 0);
  }
  if (p.dweight.data != nullptr) {
    multiply(context, {dy.data, dy.dtype, dy.stride, true}, {p.x.data, p.dtype, p.x.stride},
             {p.dweight.data, p.dweight_dtype, p.dweight.stride}, p.out, p.in, p.rows,
             p.accumulate ? 1.0F : 0.0F);
  }
  bias_gradient(context, p);
}

}  // namespace touchstone::linear_layer
