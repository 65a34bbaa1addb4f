# What every target of our own code is compiled with.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

option(QUIRE_BUILD_TESTS "Build the tests" ON)
option(QUIRE_SCALAR_ONLY "Leave out every kernel that needs an instruction set of its own" OFF)
set(QUIRE_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")
option(QUIRE_COVERAGE "Instrument for coverage (clang)" OFF)
option(QUIRE_FUZZ "Build the libFuzzer programs (clang)" OFF)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
if(QUIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

# The bit contract: no contraction unless written as fma(), never fast-math (docs/determinism.md).
add_compile_options(-ffp-contract=off)
if(QUIRE_SCALAR_ONLY)
  add_compile_definitions(QUIRE_SCALAR_ONLY)
endif()
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_COVERAGE)
  add_compile_options(-fprofile-instr-generate -fcoverage-mapping)
  add_link_options(-fprofile-instr-generate)
endif()

add_library(quire_options INTERFACE)
target_compile_options(quire_options INTERFACE -Wall -Wextra -Wconversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives of these inside its own headers.
  target_compile_options(quire_options INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow
                                                 -Wno-array-bounds)
endif()
