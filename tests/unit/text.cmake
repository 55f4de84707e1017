hy_test(gguf hy_gguf)
hy_test(tokenizer hy_text)
hy_test(dtype hy_dtype)
