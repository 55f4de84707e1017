#include "hal/conform_int.h"
void cf_cache(cf *c)
{
    (void)c;
}
