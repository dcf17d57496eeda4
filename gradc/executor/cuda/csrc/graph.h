// CUDA's graphs as torch's Python has them (torch.cuda.CUDAGraph): what they are made of needs no header of CUDA's, so one extension serves
// builds of torch with CUDA and without.
#pragma once

#include <ATen/core/GraphImplInterface.h>

#include <memory>

namespace gradc {

bool has_cuda_graphs();

// Its methods take the GIL.
std::unique_ptr<at::GraphImplInterface> make_cuda_graph();

} // namespace gradc
