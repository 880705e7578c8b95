// What cannot be done for whoever asked: one sentence with a remedy, which Python raises as a ModelError.
#pragma once

#include <stdexcept>

namespace forerun {

struct Unable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace forerun
