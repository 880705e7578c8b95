// What becomes of drafts where the target says every token by itself, as Python's records: some tens of objects a step,
// which cost the interpreter as much as the pass of a small model.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;

namespace {

// A named tuple of these fields.
nb::object record(nb::handle type, std::initializer_list<nb::handle> fields) {
    PyTypeObject* of = (PyTypeObject*)type.ptr();
    nb::object made = nb::steal(of->tp_alloc(of, (Py_ssize_t)fields.size()));
    if (!made.is_valid()) throw nb::python_error();
    Py_ssize_t at = 0;
    for (const nb::handle field : fields) PyTuple_SET_ITEM(made.ptr(), at++, field.inc_ref().ptr());
    return made;
}

nb::object blank(size_t size) {
    nb::object made = nb::steal(PyTuple_New((Py_ssize_t)size));
    if (!made.is_valid()) throw nb::python_error();
    return made;
}

int64_t number(PyObject* value) {
    const int64_t found = PyLong_AsLongLong(value);
    if (found == -1 && PyErr_Occurred()) throw nb::python_error();
    return found;
}

// Field `at` of a named tuple.
nb::handle field(nb::handle record, Py_ssize_t at) {
    if (!PyTuple_Check(record.ptr()) || PyTuple_GET_SIZE(record.ptr()) <= at) throw nb::type_error("a record is expected.");
    return PyTuple_GET_ITEM(record.ptr(), at);
}

// Names of attributes, made once; they stay as long as the process.
struct Names {
    static nb::handle kept(const char* name) { return PyUnicode_InternFromString(name); }
    nb::handle sampling = kept("sampling"), best = kept("best"), logprobs = kept("logprobs"), tokens = kept("tokens");
    nb::handle parents = kept("parents"), source = kept("source"), target = kept("target");
};

// A tuple that a draft has one of.
nb::object column(nb::handle draft, nb::handle name, Py_ssize_t least) {
    nb::object values = draft.attr(name);
    if (!PyTuple_Check(values.ptr()) || PyTuple_GET_SIZE(values.ptr()) < least) throw nb::type_error("a draft has a tuple of them.");
    return values;
}

// Types of named tuples, by which memory is laid out: nothing else may pass for one.
struct Records {
    nb::handle verdict, outcome, emission, turn;
    explicit Records(const nb::tuple& types) {
        if (types.size() != 4) throw nb::type_error("four types of records are expected.");
        for (const nb::handle type : types)
            if (!PyType_Check(type.ptr()) || !PyType_IsSubtype((PyTypeObject*)type.ptr(), &PyTuple_Type)) throw nb::type_error("a record's type is a tuple's.");
        verdict = types[0], outcome = types[1], emission = types[2], turn = types[3];
    }
};

// (outcome, turn) of a seat whose next tokens are its rows' best ones and that asks for nothing more, else None. Fields of
// Seat, Plan, Work and Output by their places.
nb::object said(const Records& records, const Names& names, nb::handle seat, nb::handle plan, nb::handle output) {
    const nb::object sampling = field(seat, 0).attr(names.sampling);
    if (!field(seat, 3).is(Py_True) || !nb::cast<bool>(sampling.attr(names.best)) || !sampling.attr(names.logprobs).is_none()) return nb::none();
    const nb::handle pending = field(seat, 2), draft = field(plan, 1), best = field(output, 1);
    field(pending, 0);  // whoever is judged has read something
    const nb::object tokens = column(draft, names.tokens, 0), source = draft.attr(names.source);
    const Py_ssize_t nodes = PyTuple_GET_SIZE(tokens.ptr()), read = PyTuple_GET_SIZE(pending.ptr());
    const nb::object parents = column(draft, names.parents, nodes);
    if (!PyUnicode_Check(source.ptr())) return nb::none();
    field(best, nodes);  // a row for the root and for every node
    std::vector<int64_t> path, depths(nodes);
    int64_t at = -1, token = number(field(best, 0).ptr()), deepest = 0;
    for (Py_ssize_t node = 0; node < nodes; ++node) {  // parents come first
        const int64_t parent = number(PyTuple_GET_ITEM(parents.ptr(), node));
        if (parent < -1 || parent >= node) throw nb::value_error("a parent comes before its child.");
        depths[node] = parent < 0 ? 1 : depths[parent] + 1;
        deepest = std::max(deepest, depths[node]);
        if (parent != at || number(PyTuple_GET_ITEM(tokens.ptr(), node)) != token) continue;
        path.push_back(at = node);
        token = number(PyTuple_GET_ITEM(best.ptr(), node + 1));
    }
    const nb::object way = blank(path.size()), emissions = blank(path.size() + 1), keep = blank(read + path.size());
    for (size_t i = 0; i < path.size(); ++i) {
        const nb::handle drafted = PyTuple_GET_ITEM(tokens.ptr(), path[i]);
        PyTuple_SET_ITEM(way.ptr(), i, PyLong_FromLongLong(path[i]));
        PyTuple_SET_ITEM(emissions.ptr(), i, record(records.emission, {drafted, source, nb::none()}).release().ptr());
        PyTuple_SET_ITEM(keep.ptr(), read + i, PyLong_FromLongLong(read + path[i]));
    }
    for (Py_ssize_t i = 0; i < read; ++i) PyTuple_SET_ITEM(keep.ptr(), i, PyLong_FromLongLong(i));
    const nb::handle own = PyTuple_GET_ITEM(best.ptr(), at + 1);
    PyTuple_SET_ITEM(emissions.ptr(), path.size(), record(records.emission, {own, names.target, nb::none()}).release().ptr());
    const nb::object verdict = record(records.verdict, {way, own});
    const nb::object outcome = record(records.outcome, {field(plan, 0), output, draft, verdict});
    const nb::object turn = record(records.turn, {emissions, keep, nb::int_(nodes), nb::int_(deepest), nb::none()});
    return nb::make_tuple(outcome, turn);
}

}  // namespace

void bind_turns(nb::module_& m) {
    m.def("said", [](nb::list seats, nb::list plans, nb::list outputs, nb::tuple types) {
        if (seats.size() != plans.size() || seats.size() != outputs.size()) throw std::invalid_argument("a plan and an output for every seat.");
        static const Names names;
        const Records records(types);
        nb::list found;
        for (size_t i = 0; i < seats.size(); ++i) found.append(said(records, names, seats[i], plans[i], outputs[i]));
        return found;
    }, nb::arg("seats"), nb::arg("plans"), nb::arg("outputs"), nb::arg("types"));
}
