hy_test(model_config hy_model)
if(TARGET hy_exec)
    foreach(t model_load exec ahead)
        hy_test(${t} hy_exec hy_model hy_hal)
        target_sources(test_${t} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../golden/lm.c
                       ${CMAKE_CURRENT_LIST_DIR}/../golden/togguf.c)
        target_link_libraries(test_${t} PRIVATE PkgConfig::jansson)
    endforeach()
endif()
