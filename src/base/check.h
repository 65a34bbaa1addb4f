// QUIRE_CHECK(condition): a programmer's error ends the process with the place. No input, file or peer may reach one.
#pragma once

#include <cstdio>
#include <cstdlib>

#define QUIRE_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
