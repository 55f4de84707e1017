# The comparison of `halyard drift` is code of tools, which is no library.
if(TARGET hy_node)
    add_executable(test_drift unit/test_drift.c ${CMAKE_SOURCE_DIR}/tools/cli/drift.c)
    target_link_libraries(test_drift PRIVATE hy_node golden_lm PkgConfig::cmocka)
    add_test(NAME unit.drift COMMAND test_drift)
    set_tests_properties(unit.drift PROPERTIES LABELS unit TIMEOUT 300
        ENVIRONMENT "HY_SOURCE_DIR=${CMAKE_SOURCE_DIR}")
endif()
