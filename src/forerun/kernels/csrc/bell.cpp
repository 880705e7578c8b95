// A bell between two threads of Python: whoever rings lets go of the interpreter first, so that who is woken finds it free
// and need not be woken once more.
#include <nanobind/nanobind.h>
#include <poll.h>
#include <unistd.h>

namespace nb = nanobind;

// Both are ends of pipes that never block; the wait is in whole milliseconds. What was said before is forgotten.
static void ring(int button, int answer, double seconds) {
    nb::gil_scoped_release release;
    char said[64];
    while (read(answer, said, sizeof said) > 0) {}
    if (write(button, "!", 1) < 0) {}  // full: it is ringing
    pollfd ear{answer, POLLIN, 0};
    poll(&ear, 1, (int)(seconds * 1000));
}

void bind_bell(nb::module_& m) { m.def("ring", ring); }
