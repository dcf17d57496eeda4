using Real = float;
using Number = float;

struct Row {
  Real* operands[4]; // param, grad, exp_avg, exp_avg_sq
  long long size;
  unsigned first_block, unused;
};

struct Arguments {
  unsigned num_rows, unused;
  Number numbers[7];
  alignas(8) Row rows[16];
};

__device__ inline Real mul_op(Number a, Number number) {
  return __fmul_rn(a, number);
}
__device__ inline Real lerp_op(Number a, Number b, Number number) {
  return fabsf(number) < Number(0.5) ? __fmaf_rn(number, __fsub_rn(b, a), a) : __fmaf_rn(-__fsub_rn(b, a), __fsub_rn(1, number), b);
}
__device__ inline Real addcmul_op(Number a, Number b, Number c, Number number) {
  return number == 1 ? __fmaf_rn(b, c, a) : __fmaf_rn(number, __fmul_rn(b, c), a);
}
__device__ inline Real sqrt_op(Number a) {
  return __fsqrt_rn(a);
}
__device__ inline Real div_op(Number a, Number number) {
  return __fdiv_rn(a, number);
}
__device__ inline Real add_number_op(Number a, Number number) {
  return __fadd_rn(a, number);
}
__device__ inline Real addcdiv_op(Number a, Number b, Number c, Number number) {
  return __fmaf_rn(number, __fdiv_rn(b, c), a);
}

// The last row that begins at this block or before.
__device__ unsigned row_of(const Arguments& arguments, unsigned block) {
  unsigned low = 0, high = arguments.num_rows;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (arguments.rows[middle].first_block <= block ? low : high) = middle;
  }
  return low;
}

__device__ inline void update_element(const Number* numbers, Real& param, Real grad, Real& exp_avg, Real& exp_avg_sq) {
  param = mul_op(param, numbers[0]);
  exp_avg = lerp_op(exp_avg, grad, numbers[1]);
  exp_avg_sq = mul_op(exp_avg_sq, numbers[2]);
  exp_avg_sq = addcmul_op(exp_avg_sq, grad, grad, numbers[3]);
  Real denom = sqrt_op(exp_avg_sq);
  denom = div_op(denom, numbers[4]);
  denom = add_number_op(denom, numbers[5]);
  param = addcdiv_op(param, exp_avg, denom, numbers[6]);
}

struct alignas(16) Pack {
  Real elements[4];
};

extern "C" __global__ void update(const __grid_constant__ Arguments arguments) {
  const Row& row = arguments.rows[row_of(arguments, blockIdx.x)];
  Real* const __restrict__ params = row.operands[0];
  Real* const __restrict__ grads = row.operands[1];
  Real* const __restrict__ exp_avgs = row.operands[2];
  Real* const __restrict__ exp_avg_sqs = row.operands[3];
  const long long begin = (long long)(blockIdx.x - row.first_block) * 1024 + threadIdx.x * 4;
  const bool is_aligned = ((unsigned long long)params | (unsigned long long)grads | (unsigned long long)exp_avgs | (unsigned long long)exp_avg_sqs) % sizeof(Pack) == 0;
  if (is_aligned && begin + 4 <= row.size) {
    Pack param = *(const Pack*)(params + begin);
    Pack grad = *(const Pack*)(grads + begin);
    Pack exp_avg = *(const Pack*)(exp_avgs + begin);
    Pack exp_avg_sq = *(const Pack*)(exp_avg_sqs + begin);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      update_element(arguments.numbers, param.elements[i], grad.elements[i], exp_avg.elements[i], exp_avg_sq.elements[i]);
    }
    *(Pack*)(params + begin) = param;
    *(Pack*)(exp_avgs + begin) = exp_avg;
    *(Pack*)(exp_avg_sqs + begin) = exp_avg_sq;
  } else {
    for (long long i = begin; i < begin + 4 && i < row.size; ++i) {
      update_element(arguments.numbers, params[i], grads[i], exp_avgs[i], exp_avg_sqs[i]);
    }
  }
}
