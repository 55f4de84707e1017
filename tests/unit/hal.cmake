hy_test(hal_decode hy_dtype)
hy_test(hal_fmath hy_dtype)
hy_test(hal_cpu hy_hal)
hy_test(hal_support hy_hal)
hy_test(hal_blas hy_hal)
hy_test(hal_registry hy_hal)
add_dependencies(test_hal_registry halyard-skeleton)
target_compile_definitions(test_hal_registry PRIVATE
    SKELETON_DIR="$<TARGET_FILE_DIR:halyard-skeleton>")
