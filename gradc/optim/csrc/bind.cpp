#include "optim/csrc/bind.h"

#include "csrc/streams.h"
#include "csrc/timing.h"
#include "optim/csrc/arithmetic.h"
#include "optim/csrc/block_update.h"
#include "optim/csrc/gradients.h"
#include "optim/csrc/group_step.h"
#include "optim/csrc/kernel_update.h"
#include "optim/csrc/quick_method.h"
#include "optim/csrc/quick_step.h"

#include <ATen/record_function.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace gradc {
namespace {

bool has_subclass(const std::vector<py::list>& columns) {
  const auto is_of_subclass = [](py::handle value) { return !value.is_none() && !THPVariable_CheckExact(value.ptr()); };
  return std::any_of(columns.begin(), columns.end(), [&](const py::list& column) {
    return std::any_of(column.begin(), column.end(), is_of_subclass);
  });
}

double time_update(Update& update, const std::vector<TensorColumn>& operands, const std::vector<double>& numbers, int64_t repeats) {
  const auto rows = rows_of(operands);
  const std::vector<size_t> number_of(rows.size(), 0);
  std::vector<double> times;
  for (int64_t i = 0; i < repeats; ++i) {
    times.push_back(seconds_of([&] { update.run(rows, {numbers}, number_of); }));
  }
  return median(std::move(times));
}

// Sets `scalars` to `values`, then updates. The GIL is not held: `operands` keep the tensors.
void run_update(
    Update& update, const std::vector<TensorColumn>& operands, const std::vector<std::vector<double>>& numbers,
    const std::vector<size_t>& number_of, const std::vector<at::Tensor>& scalars, const std::vector<double>& values) {
  for (size_t i = 0; i < scalars.size(); ++i) {
    set_scalar(scalars[i], values.at(i));
  }
  update.run(rows_of(operands), numbers, number_of);
}

using NamedNumberSteps = std::vector<std::pair<std::string, double>>;

std::vector<NumberStep> number_steps(const NamedNumberSteps& named) {
  static const std::map<std::string, NumberOp> ops = {
      {"constant", NumberOp::constant}, {"rate", NumberOp::rate},         {"count", NumberOp::count},
      {"add", NumberOp::add},           {"subtract", NumberOp::subtract}, {"multiply", NumberOp::multiply},
      {"divide", NumberOp::divide},     {"power", NumberOp::power},       {"negate", NumberOp::negate}};
  std::vector<NumberStep> steps;
  std::transform(named.begin(), named.end(), std::back_inserter(steps), [](const auto& step) {
    return NumberStep{ops.at(step.first), step.second};
  });
  return steps;
}

// Of a class that does a method's work quickly: by the arguments that the method has, and as a builtin function in its place.
template <auto quickly, class T>
void bind_quickly(py::class_<T, std::shared_ptr<T>>& bound) {
  bound
      .def(
          "run",
          [](T& own, const py::tuple& args, const py::dict& kwargs) {
            return args.size() == 1 && kwargs.empty() && (own.*quickly)(PyTuple_GET_ITEM(args.ptr(), 0));
          },
          py::arg("args"), py::arg("kwargs"))
      .def(
          "method",
          [](std::shared_ptr<T> own, const std::string& name, py::object function, py::object otherwise) {
            const auto run = [own = std::move(own)](PyObject* optimizer) { return (own.get()->*quickly)(optimizer); };
            return quick_method(name, std::move(function), std::move(otherwise), run);
          },
          py::arg("name"), py::arg("function"), py::arg("otherwise"));
}

} // namespace

void bind_optim(py::module_& module) {
  py::enum_<UpdateOp>(module, "UpdateOp", "One call of ATen's in an optimizer's formula.")
      .value("neg", UpdateOp::neg)
      .value("abs", UpdateOp::abs)
      .value("reciprocal", UpdateOp::reciprocal)
      .value("mul_values", UpdateOp::mul_values)
      .value("div_values", UpdateOp::div_values)
      .value("mul", UpdateOp::mul)
      .value("add_number", UpdateOp::add_number)
      .value("div", UpdateOp::div)
      .value("sqrt", UpdateOp::sqrt)
      .value("add", UpdateOp::add)
      .value("lerp", UpdateOp::lerp)
      .value("addcmul", UpdateOp::addcmul)
      .value("addcdiv", UpdateOp::addcdiv)
      .value("maximum", UpdateOp::maximum);
  py::class_<Operation>(module, "Operation")
      .def(py::init([](UpdateOp op, int32_t out, int32_t a, int32_t b, int32_t c, int32_t number) {
             return Operation{op, out, a, b, c, number};
           }),
           py::arg("op"), py::arg("out"), py::arg("a"), py::arg("b") = -1, py::arg("c") = -1, py::arg("number") = -1);
  py::class_<Update, std::shared_ptr<Update>>(module, "Update", "An optimizer's formula, run over all parameters of a group.")
      .def(
          "why_not", [](Update& own, const std::vector<TensorColumn>& operands) { return own.why_not(rows_of(operands)); },
          py::arg("operands"))
      .def(
          "run", &run_update, py::arg("operands"), py::arg("numbers"), py::arg("number_of"), py::arg("scalars"), py::arg("values"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "time", &time_update, py::arg("operands"), py::arg("numbers"), py::arg("repeats"), py::call_guard<py::gil_scoped_release>(),
          "The median of a run's seconds; it runs so often.");
  py::class_<BlockUpdate, Update, std::shared_ptr<BlockUpdate>>(module, "BlockUpdate", "On the host, in one pass over each parameter.")
      .def(py::init<size_t, size_t, std::vector<Operation>>(), py::arg("num_operands"), py::arg("num_scratch"), py::arg("operations"));
  py::class_<DeviceKernel, std::shared_ptr<DeviceKernel>>(module, "DeviceKernel", "A compiled kernel of gradc's own.")
      .def(
          py::init([](const at::Device& device, uintptr_t launch, uintptr_t function) {
            const auto start = reinterpret_cast<DeviceKernel::Launch>(launch);
            return std::make_shared<DeviceKernel>(device, start, reinterpret_cast<void*>(function));
          }),
          py::arg("device"), py::arg("launch"), py::arg("function"),
          "By the address of a ``DeviceKernel::Launch`` (optim/csrc/device_kernel.h).");
  module.def(
      "load_cuda_kernel",
      [](c10::DeviceIndex device, const py::bytes& cubin, const std::string& name) { return load_cuda_kernel(device, cubin, name); },
      py::arg("device"), py::arg("cubin"), py::arg("name"));
  module.def("is_captured", &is_captured, py::arg("device"), "True while a graph is captured from the current stream of a device.");
  module.def("is_current_stream_captured", &is_current_stream_captured, "True while the current stream of the accelerator is captured.");
  py::class_<KernelUpdate, Update, std::shared_ptr<KernelUpdate>>(module, "KernelUpdate", "On a device, in one launch for all parameters.")
      .def(
          py::init([](std::vector<uint32_t> num_writes, std::shared_ptr<DeviceKernel> kernel, py::object dtype, size_t num_numbers,
                      size_t most_rows, uint32_t elements_of_block, uint32_t num_threads) {
            const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
            return std::make_shared<KernelUpdate>(
                std::move(num_writes),
                CompiledUpdate{std::move(kernel), type, num_numbers, most_rows, elements_of_block, num_threads});
          }),
          py::arg("num_writes"), py::arg("kernel"), py::arg("dtype"), py::arg("num_numbers"), py::arg("most_rows"),
          py::arg("elements_of_block"), py::arg("num_threads"));
  module.def(
      "compute",
      [](const NamedNumberSteps& arithmetic, double rate, double count) -> std::optional<std::vector<double>> {
        std::vector<double> numbers;
        return compute(number_steps(arithmetic), rate, count, numbers) ? std::make_optional(std::move(numbers)) : std::nullopt;
      },
      py::arg("arithmetic"), py::arg("rate"), py::arg("count"), "The numbers that gradc.optim.arithmetic has written down.");
  py::class_<GroupStep, std::shared_ptr<GroupStep>>(module, "GroupStep", "The step of one parameter group, whose settings are known.")
      .def(
          py::init([](const py::dict& group, std::shared_ptr<Update> update, const std::vector<std::string>& keys, py::function numbers,
                      const NamedNumberSteps& arithmetic, py::function is_proven) {
            return std::make_shared<GroupStep>(
                group, std::move(update), keys, std::move(numbers), number_steps(arithmetic), std::move(is_proven));
          }),
          py::arg("group"), py::arg("update"), py::arg("keys"), py::arg("numbers"), py::arg("arithmetic"), py::arg("is_proven"))
      .def(
          "step", [](GroupStep& own, const py::object& group, const py::object& state) { return own.step(group.ptr(), state.ptr()); },
          py::arg("group"), py::arg("state"));
  py::class_<QuickSteps, std::shared_ptr<QuickSteps>> steps(module, "QuickSteps", "The steps of optimizers whose groups are known.");
  steps
      .def(
          py::init<std::vector<py::str>, std::vector<py::dict>, py::object, bool>(), py::arg("that_decide"), py::arg("hooks"),
          py::arg("counters"), py::arg("asks_whether_captured"))
      .def("learn", &QuickSteps::learn, py::arg("optimizer"), py::arg("groups"));
  bind_quickly<&QuickSteps::step>(steps);
  module.def(
      "clear_gradients", [](const py::object& params) { return clear_gradients(params.ptr()); }, py::arg("params"),
      "Set ``.grad`` to None, one after the other; False at the first tensor that is not as usual.");
  py::class_<QuickZeroGrad, std::shared_ptr<QuickZeroGrad>> zero_grad(
      module, "QuickZeroGrad", "torch's ``Optimizer.zero_grad``, where all is as usual.");
  zero_grad.def(py::init<py::object, py::function>(), py::arg("grad"), py::arg("set_eval_frame"));
  bind_quickly<&QuickZeroGrad::run>(zero_grad);
  module.def("has_subclass", &has_subclass, py::arg("columns"), "True if a tensor in one of the lists is of a subclass of torch.Tensor's.");
  module.def("is_observed", &at::hasCallbacks, "True while a profiler or its like hears of every op of this thread.");
  module.def("next_counts", &next_counts, py::arg("steps"));
  module.def("why_not_scalars", &why_not_scalars, py::arg("scalars"));
}

} // namespace gradc
