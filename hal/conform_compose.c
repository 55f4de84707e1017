#include "hal/conform_int.h"
void cf_compose(cf *c)
{
    (void)c;
}
