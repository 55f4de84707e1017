foreach(t base_buf arena hash rng clock mbox timer stage runtime metric file alloc map watch status)
    hy_test(${t} hy_base)
endforeach()
