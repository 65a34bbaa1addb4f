# quire_room(NAME [DEPS room...] [LIBS target...]) makes the static library quire_NAME of the folder's sources
# and, from NAME_test.cc files, the test program NAME_test.
function(quire_room NAME)
  cmake_parse_arguments(ROOM "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

  set(deps ${ROOM_DEPS})
  list(TRANSFORM deps PREPEND quire_)
  if(sources)
    add_library(quire_${NAME} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(quire_${NAME} PRIVATE quire_options)
  else()
    add_library(quire_${NAME} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(quire_${NAME} ${scope} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(quire_${NAME} ${scope} ${deps} ${ROOM_LIBS} fmt::fmt Threads::Threads)

  if(tests AND QUIRE_BUILD_TESTS)
    quire_test(${NAME}_test SOURCES ${tests} DEPS ${NAME})
  endif()
endfunction()

# quire_test(NAME SOURCES file... DEPS room...) makes a GoogleTest program and registers it with CTest.
function(quire_test NAME)
  cmake_parse_arguments(TEST "" "" "SOURCES;DEPS" ${ARGN})
  set(deps ${TEST_DEPS})
  list(TRANSFORM deps PREPEND quire_)
  add_executable(${NAME} ${TEST_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${deps} quire_options GTest::gtest GTest::gtest_main)
  target_compile_definitions(${NAME} PRIVATE QUIRE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/golden"
                                             QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${NAME} COMMAND ${NAME})
endfunction()
