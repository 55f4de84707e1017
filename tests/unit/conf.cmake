hy_test(conf hy_conf)
hy_test(conf_files hy_conf hy_fabric hy_node)
