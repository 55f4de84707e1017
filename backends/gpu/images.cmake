# hy_gpu_images(OUT NAME1=FILE1 ...): writes the C file OUT, which embeds compiled kernels in the order given
# (backends/gpu/driver.h: gpu_images).
function(hy_gpu_images out)
    set(asm "")
    set(externs "")
    set(rows "")
    set(i 0)
    set(files "")
    foreach(pair ${ARGN})
        string(REGEX MATCH "^([^=]*)=(.*)$" _ "${pair}")
        set(arch ${CMAKE_MATCH_1})
        set(file ${CMAKE_MATCH_2})
        string(APPEND asm
            "__asm__(\".section .rodata\\n.balign 4096\\n.globl gpu_image_${i}\\n.hidden gpu_image_${i}\\n\"\n"
            "        \"gpu_image_${i}:\\n.incbin \\\"${file}\\\"\\n.balign 8\\n.quad 0\\n.previous\\n\");\n")
        string(APPEND externs "extern const unsigned char gpu_image_${i}[];\n")
        string(APPEND rows "    {\"${arch}\", gpu_image_${i}},\n")
        list(APPEND files ${file})
        math(EXPR i "${i} + 1")
    endforeach()
    file(GENERATE OUTPUT ${out} CONTENT
        "/* Written by backends/gpu/images.cmake. */\n#include \"backends/gpu/driver.h\"\n\n${asm}${externs}
extern const gpu_image gpu_images[];\nconst gpu_image gpu_images[] = {\n${rows}    {NULL, NULL},\n};\n")
    set_source_files_properties(${out} PROPERTIES GENERATED TRUE OBJECT_DEPENDS "${files}")
endfunction()
