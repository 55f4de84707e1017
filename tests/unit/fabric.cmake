hy_test(fabric_wire hy_fabric)
