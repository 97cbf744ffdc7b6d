# Installs the build tree, moves the result, and builds and runs a stranger's project (tests/consumer) against it:
# the torch-free part with LibTorch forbidden, then all of it. Arguments: build, consumer, work,
# torch, python, compiler, flags.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# build_consumer(<name> <programs to run> <configure arguments>...)
function(build_consumer name programs)
  run(${CMAKE_COMMAND} --no-warn-unused-cli -S ${consumer} -B ${work}/${name}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${compiler} "-DCMAKE_CXX_FLAGS=${flags}"
    -Daft_ROOT=${work}/moved ${ARGN})
  run(${CMAKE_COMMAND} --build ${work}/${name})
  foreach(program IN LISTS programs)
    run(${work}/${name}/${program})
  endforeach()
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/moved)

# Nothing in the package may point back to where it was built.
file(GLOB_RECURSE package_files ${work}/moved/*.cmake)
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  string(FIND "${text}" "${build}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} must not name the build directory ${build}")
  endif()
endforeach()

build_consumer(torch_free "use_kernels;use_io" -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON)

if(torch)
  build_consumer(all "use_kernels;use_io;use_aft" -DCONSUMER_TORCH=ON)
  run(${work}/moved/bin/aft --help)
  run(${work}/moved/bin/aft-bench --help)
  if(NOT flags)  # Python itself is not built with the sanitizers
    run(${CMAKE_COMMAND} -E env --unset=AFT_LIBRARY PYTHONDONTWRITEBYTECODE=1
      PYTHONPATH=${work}/moved/lib/python3/dist-packages
      ${python} -c "import aft, torch; x = torch.zeros(1, 2, 3); assert aft.simple(x, x, x).shape == x.shape")
  endif()
else()
  # Asking a torch-free installation for aft::aft must fail, and say why.
  file(WRITE ${work}/asks_for_aft/CMakeLists.txt
    "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES NONE)\nfind_package(aft REQUIRED COMPONENTS aft)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${work}/asks_for_aft -B ${work}/asks_for_aft/build -Daft_ROOT=${work}/moved
    RESULT_VARIABLE result ERROR_VARIABLE message OUTPUT_QUIET)
  if(result EQUAL 0 OR NOT message MATCHES "component aft is not in this installation")
    message(FATAL_ERROR "find_package(aft COMPONENTS aft) must fail with a reason without torch, got ${result}: ${message}")
  endif()
endif()
