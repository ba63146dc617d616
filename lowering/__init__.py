if __name__ != "emmy.lowering":
    raise ImportError("import emmy.lowering, not lowering: a second import would register every op twice")
