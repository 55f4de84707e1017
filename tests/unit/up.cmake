if(TARGET hy_node) # hy_up comes with tools/, after this folder's own libraries
    hy_test(up_plan hy_up hy_fabric)
endif()
