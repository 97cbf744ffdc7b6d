# Functions for the libraries and programs of the project: names, headers, installation and the package files.
include(CMakePackageConfigHelpers)

# aft_library(<target> <export-name> <public headers>...)
# Gives the target its alias aft::<export-name>, its public headers (paths from the top of the project, installed under
# the same path in include/), and its place in the installed package. <export-name> is also the name of the component.
function(aft_library target name)
  add_library(aft::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON
    INSTALL_RPATH_USE_LINK_PATH ON)
  target_compile_features(${target} PUBLIC cxx_std_17)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARGN})
  install(TARGETS ${target} EXPORT aft-${name}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT aft-${name} NAMESPACE aft:: FILE aft-${name}.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/aft)
endfunction()

# aft_program(<target> <name> <library>): a program of this name directly in the build directory, which installs beside
# the libraries and finds libaft.so relative to itself.
function(aft_program target name library)
  file(RELATIVE_PATH to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    INSTALL_RPATH "$ORIGIN/${to_lib}" INSTALL_RPATH_USE_LINK_PATH ON)
  target_link_libraries(${target} PRIVATE ${library})
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# aft_embed(<out> <files>...): embeds the files in the C++ source <out>, under their paths from the top of the project.
function(aft_embed out)
  set(pairs)
  set(paths)
  foreach(file IN LISTS ARGN)
    list(APPEND paths "${PROJECT_SOURCE_DIR}/${file}")
    list(APPEND pairs "${file}=${PROJECT_SOURCE_DIR}/${file}")
  endforeach()
  list(JOIN pairs "|" pairs)
  set(script ${PROJECT_SOURCE_DIR}/cmake/AftEmbed.cmake)
  add_custom_command(OUTPUT ${out} DEPENDS ${paths} ${script} VERBATIM
    COMMAND ${CMAKE_COMMAND} -D out=${out} -D "files=${pairs}" -P ${script})
endfunction()

# aft_package(): the files that find_package(aft) reads.
function(aft_package)
  configure_package_config_file(cmake/aftConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/aftConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/aft
    NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/aftConfigVersion.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/aftConfig.cmake ${PROJECT_BINARY_DIR}/cmake/aftConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/aft)
endfunction()
