hy_test(jinja hy_chat)
hy_test(chatreq hy_chat)
hy_test(toolcall hy_chat)
