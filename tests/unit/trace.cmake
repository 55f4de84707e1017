hy_test(trace hy_base PkgConfig::jansson)
