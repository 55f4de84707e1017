hy_test(http_parts hy_http)
hy_test(http_parse hy_http)
foreach(t http_server http_wire http_errors)
    hy_test(${t} hy_http)
    target_sources(test_${t} PRIVATE unit/http_kit.c)
endforeach()
# For clients in other languages: tests/http/openai --fake build/.../tests/http_fake_server
add_executable(http_fake_server http/fake_server.c unit/http_kit.c)
target_link_libraries(http_fake_server PRIVATE hy_http PkgConfig::cmocka)
add_test(NAME http.openai COMMAND ${CMAKE_SOURCE_DIR}/tests/http/openai --fake
    $<TARGET_FILE:http_fake_server>)
set_tests_properties(http.openai PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 ENVIRONMENT
    "HY_SOURCE_DIR=${CMAKE_SOURCE_DIR}")
