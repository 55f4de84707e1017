hy_test(simt_exec hy_simt_exec)
hy_test(simt_ops hy_hal)
hy_test(simt_traffic hy_hal)
# The same on ucontext, which processors other than x86-64 use.
add_executable(test_simt_ucontext unit/test_simt_exec.c ${CMAKE_SOURCE_DIR}/backends/simt/host/block.c
    ${CMAKE_SOURCE_DIR}/backends/simt/host/exec.c ${CMAKE_SOURCE_DIR}/backends/simt/host/fiber.c
    ${CMAKE_SOURCE_DIR}/backends/simt/host/traffic.c)
target_compile_definitions(test_simt_ucontext PRIVATE SIMT_UCONTEXT)
target_link_libraries(test_simt_ucontext PRIVATE hy_base PkgConfig::cmocka)
add_test(NAME unit.simt_ucontext COMMAND test_simt_ucontext)
set_tests_properties(unit.simt_ucontext PROPERTIES LABELS unit TIMEOUT 300)
