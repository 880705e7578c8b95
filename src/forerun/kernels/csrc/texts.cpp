// What Python sees of automata and suffix arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "suffixes.h"

namespace nb = nanobind;
using namespace forerun;

namespace {

using Tokens = std::vector<int32_t>;
using Place = std::tuple<int32_t, int32_t>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple told(const Guess& guess) {
    const auto list = [](const auto& values) {
        nb::object made = nb::steal(PyTuple_New((Py_ssize_t)values.size()));
        for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(made.ptr(), i, nb::cast(values[i]).release().ptr());
        return made;
    };
    return nb::make_tuple(list(guess.tokens), list(guess.parents), list(guess.chances), guess.score);
}

int32_t known(const Automaton& a, int32_t state) {
    if (state < 0 || state >= a.states()) throw std::invalid_argument("the automaton has no such state.");
    return state;
}

Match match(const Automaton& a, Place at) { return {known(a, std::get<0>(at)), std::get<1>(at)}; }
Place place(Match at) { return {at.state, at.length}; }

Text text(const Ids& tokens, const Ids& suffixes) {
    if (tokens.size() != suffixes.size()) throw std::invalid_argument("tokens and suffixes are not of one length.");
    return {tokens.data(), suffixes.data(), (int64_t)tokens.size()};
}

}  // namespace

void bind_texts(nb::module_& m) {
    nb::class_<Automaton>(m, "Automaton")
        .def(nb::init<>())
        .def("extend", [](Automaton& a, int32_t last, const Tokens& tokens) {
            known(a, last);
            for (const int32_t token : tokens) last = a.add(last, token);
            return last;
        })
        .def("follow", [](const Automaton& a, Place at, const Tokens& tokens) {
            Match here = match(a, at);
            for (const int32_t token : tokens) here = a.step(here, token);
            return place(here);
        })
        .def("earlier", [](const Automaton& a, int32_t last) {
            return known(a, last) == ROOT ? place({}) : place(a.earlier(last));
        })
        .def("tree", [](const Automaton& a, Place at, int budget, double factor, double least) {
            return told(a.tree(match(a, at), budget, factor, least));
        })
        .def("chain", [](const Automaton& a, Place at, int budget, bool latest) {
            return told(a.chain(match(a, at), budget, latest));
        })
        .def_prop_ro("states", &Automaton::states)
        .def_prop_ro("nbytes", &Automaton::bytes);

    m.def("longest", [](const Ids& tokens, const Ids& suffixes, const Tokens& pattern, int least) {
        const Range found = longest(text(tokens, suffixes), pattern, least);
        return std::make_tuple(found.low, found.high, found.length);
    });
    m.def("prefixes", [](const Ids& tokens, const Ids& suffixes, std::tuple<int64_t, int64_t, int32_t> range, int depth,
                         int most, int budget, double least) {
        const auto [low, high, length] = range;
        const Text whole = text(tokens, suffixes);
        if (low < 0 || high < low || high > whole.size) throw std::invalid_argument("there are no such suffixes.");
        return told(prefixes(whole, {low, high, length}, depth, most, budget, least));
    });
}
