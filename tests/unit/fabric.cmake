hy_test(fabric_wire hy_fabric)
hy_test(lend hy_fabric)
