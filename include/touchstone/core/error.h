// The one error policy: operators and constructors throw a subclass of Error before anything is
// written. A message reads `operator: argument: expected ..., got ...`.
#pragma once

#include <stdexcept>
#include <string>

#include "touchstone/core/export.h"
#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0 {

class TOUCHSTONE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed something the contract forbids: shape, dtype, device, null, overlap, range.
class TOUCHSTONE_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The request is legal but this build, device or implementation cannot serve it.
class TOUCHSTONE_API Unsupported : public Error {
 public:
  using Error::Error;
};

class TOUCHSTONE_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A file or a buffer from outside does not hold what it claims to hold.
class TOUCHSTONE_API CorruptData : public Error {
 public:
  using Error::Error;
};

// The operating system refused to open, read or write a file.
class TOUCHSTONE_API FileError : public Error {
 public:
  using Error::Error;
};

// The CUDA runtime reported a failure.
class TOUCHSTONE_API DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace touchstone::inline v0
